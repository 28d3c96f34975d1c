import { isRegistryHost } from '../orgs/registry-host.ts'

/** A reference taken apart. `tag` and `digest` may both be there; then the digest decides what is pulled. */
export type ImageReference = {
  /** Host, with its port when it has one; `localhost` alone is the store's own namespace. */
  readonly registry: string
  readonly repository: string
  /** `latest` when the reference names neither a tag nor a digest. */
  readonly tag: string | null
  /** `sha256:` and 64 hex digits. */
  readonly digest: string | null
}

/** A parse that succeeded, or what is wrong in words for the person who wrote the reference. */
export type ParsedReference =
  { readonly ok: true; readonly reference: ImageReference } | { readonly ok: false; readonly problem: string }

/** The public hub: what a reference without a host means, unless SANDYARD_DEFAULT_REGISTRY names another registry. */
export const PUBLIC_HUB = 'docker.io'
/** The hub keeps names of one word beneath this folder. */
const PUBLIC_HUB_FOLDER = 'library/'

/** The registry of images that were loaded from a file and come from nowhere else. */
const LOCAL_NAMESPACE = 'localhost'

/** The longest reference that is read, in characters: 255 for the name by the grammar, 128 for a tag, a digest, marks. */
const MAX_REFERENCE_CHARS = 500
const MAX_NAME_CHARS = 255

// The grammar of the distribution specification, "Pulling manifests".
const TAG = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/
const DIGEST = /^sha256:[0-9a-f]{64}$/
const PATH_PART = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/

/**
 * Reads `python`, `python:3.12`, `host:5000/a/b:tag`, `name@sha256:…`. The first part is a host when it holds a dot or
 * a colon or is `localhost`; otherwise the image is of `defaultRegistry`.
 */
export function parseImageReference(text: string, defaultRegistry: string): ParsedReference {
  if (text === '') return refuse('an image reference must not be empty')
  if (text.length > MAX_REFERENCE_CHARS) {
    return refuse(
      `an image reference has at most ${String(MAX_REFERENCE_CHARS)} characters, this one ${String(text.length)}`,
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

/** The one spelling of a reference: two references mean the same image exactly when this is equal. */
export function canonicalReference({ registry, repository, tag, digest }: ImageReference): string {
  return `${registry}/${repository}${tag === null ? '' : `:${tag}`}${digest === null ? '' : `@${digest}`}`
}

/** What the registry is asked for: the digest when there is one, or the tag. */
export function manifestKey(reference: ImageReference): string {
  return reference.digest ?? reference.tag ?? 'latest'
}

/** Whether the image lives in the worker's store only (`localhost/…` without a port): it is loaded, never pulled. */
export function isLocalOnly(reference: ImageReference): boolean {
  return reference.registry === LOCAL_NAMESPACE
}

/** Whether a registry, or any URL host, is this machine: `localhost`, `127.x.x.x` or `[::1]`, with or without a port. */
export function isLoopbackHost(host: string): boolean {
  return /^(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?$/i.test(host)
}

/** Where the registry's API is: plain HTTP for this machine only, HTTPS for every other. */
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
