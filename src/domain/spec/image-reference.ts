import { isRegistryHost } from '../orgs/registry-host.ts'

/** The parts of an image reference. A reference with a tag and a digest is pulled by its digest. */
export type ImageReference = {
  /** The host, with its port if it has one. `localhost` without a port is the namespace of loaded images. */
  readonly registry: string
  readonly repository: string
  /** `latest` if the reference names neither a tag nor a digest. */
  readonly tag: string | null
  /** `sha256:` and 64 hex digits. */
  readonly digest: string | null
}

/** The parsed reference, or a description of the mistake for the person who wrote it. */
export type ParsedReference =
  { readonly ok: true; readonly reference: ImageReference } | { readonly ok: false; readonly problem: string }

/** The registry of references without a host, unless SANDYARD_DEFAULT_REGISTRY names another. */
export const PUBLIC_HUB = 'docker.io'
/** The public hub stores images with a one-part name, such as `python`, in this folder. */
const PUBLIC_HUB_FOLDER = 'library/'

/** The registry of images that were loaded from a file. They are never pulled. */
const LOCAL_NAMESPACE = 'localhost'

/** The longest reference, in characters: a name of 255, a tag of 128, a digest, and the separators between them. */
const MAX_REFERENCE_CHARS = 500
const MAX_NAME_CHARS = 255

// The grammar of the distribution specification, "Pulling manifests".
const TAG = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/
const DIGEST = /^sha256:[0-9a-f]{64}$/
const PATH_PART = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/

/**
 * Parses references such as `python`, `python:3.12`, `host:5000/a/b:tag` and `name@sha256:…`. The first part is a host if it
 * contains a dot or a colon, or is `localhost`. Otherwise the image is in `defaultRegistry`.
 */
export function parseImageReference(text: string, defaultRegistry: string): ParsedReference {
  if (text === '') return refuse('an image reference must not be empty')
  if (text.length > MAX_REFERENCE_CHARS) {
    return refuse(
      `an image reference has at most ${String(MAX_REFERENCE_CHARS)} characters, this one has ${String(text.length)}`,
    )
  }
  const at = text.indexOf('@')
  const digest = at < 0 ? null : text.slice(at + 1)
  if (digest !== null && !DIGEST.test(digest)) return refuse(`the digest in '${text}' is not sha256: and 64 hex digits`)

  const named = at < 0 ? text : text.slice(0, at)
  const colon = named.indexOf(':', named.lastIndexOf('/') + 1)
  const tag = colon < 0 ? null : named.slice(colon + 1)
  if (tag !== null && !TAG.test(tag))
    return refuse(`the tag in '${text}' is not 1 to 128 letters, digits, '_', '.' or '-'`)

  const { registry, path } = splitHost(colon < 0 ? named : named.slice(0, colon), defaultRegistry)
  if (!isRegistryHost(registry.toLowerCase())) return refuse(`'${registry}' in '${text}' is not a registry host`)
  const repository = registry === PUBLIC_HUB && !path.includes('/') ? `${PUBLIC_HUB_FOLDER}${path}` : path
  if (!path.split('/').every((part) => PATH_PART.test(part))) {
    return refuse(
      `the name in '${text}' is not lower-case words of letters and digits, joined by '.', '_', '-' and '/'`,
    )
  }
  if (registry.length + 1 + repository.length > MAX_NAME_CHARS) {
    return refuse(`the name in '${text}' is longer than ${String(MAX_NAME_CHARS)} characters`)
  }
  return { ok: true, reference: { registry, repository, tag: tag ?? (digest === null ? 'latest' : null), digest } }
}

/** The canonical spelling. Two references mean the same image if and only if their canonical spellings are equal. */
export function canonicalReference({ registry, repository, tag, digest }: ImageReference): string {
  return `${registry}/${repository}${tag === null ? '' : `:${tag}`}${digest === null ? '' : `@${digest}`}`
}

/**
 * The digest or tag by which the registry is asked for the image's manifest: the digest if the reference has one,
 * otherwise the tag.
 */
export function manifestKey(reference: ImageReference): string {
  return reference.digest ?? reference.tag ?? 'latest'
}

/**
 * Whether the image is only in the worker's store (`localhost/…` without a port). Such an image is loaded, never
 * pulled.
 */
export function isLocalOnly(reference: ImageReference): boolean {
  return reference.registry === LOCAL_NAMESPACE
}

/** Whether a registry, or any URL host, is this machine: `localhost`, `127.x.x.x` or `[::1]`, with or without a port. */
export function isLoopbackHost(host: string): boolean {
  return /^(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?$/i.test(host)
}

/** The base URL of a registry's API: HTTP for this machine, HTTPS for every other. */
export function registryUrl(registry: string): string {
  if (isLoopbackHost(registry)) return `http://${registry}`
  return `https://${registry === PUBLIC_HUB ? `registry-1.${registry}` : registry}`
}

function splitHost(name: string, defaultRegistry: string): { readonly registry: string; readonly path: string } {
  const slash = name.indexOf('/')
  const first = slash < 0 ? '' : name.slice(0, slash)
  const isNamed = first === LOCAL_NAMESPACE || /[.:[\]]/.test(first)
  return isNamed
    ? { registry: first.toLowerCase(), path: name.slice(slash + 1) }
    : { registry: defaultRegistry, path: name }
}

function refuse(problem: string): ParsedReference {
  return { ok: false, problem }
}
