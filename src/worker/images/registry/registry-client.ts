import type { Clock } from '../../../lib/clock.ts'
import type { GuardedHttp } from '../../../lib/outbound/guarded-http.ts'
import { canonicalReference, registryUrl, type ImageReference } from '../../../domain/spec/image-reference.ts'
import { StartError } from '../../start-error.ts'
import { digestOf, readBlob, verifyBlob } from '../blob.ts'
import type { ImageLimits, RegistryAuth } from '../image.ts'
import type { Descriptor } from '../manifest.ts'
import { answerChallenge, parseChallenge } from './registry-auth.ts'
import {
  type RegistryReply,
  type RegistryTimeouts,
  TransientRegistryError,
  sendToRegistry,
  withRetries,
} from './registry-transport.ts'

/**
 * A client for one repository of a registry, with one caller's credential. Errors are `StartError`s that name the image
 * but contain no secrets.
 */
interface RegistryClient {
  /**
   * Returns the digest that `key`, a tag or digest, resolves to. Null when the registry doesn't have the image. Any
   * result other than null proves that the caller has access.
   */
  headManifest(key: string, signal: AbortSignal): Promise<string | null>
  /**
   * Returns the bytes of a manifest or index, and their digest. If `key` is a digest, the bytes are verified against
   * it.
   */
  getManifest(key: string, signal: AbortSignal): Promise<{ readonly bytes: Buffer; readonly digest: string }>
  /** Returns a small blob, such as an image configuration. */
  getSmallBlob(descriptor: Descriptor, signal: AbortSignal): Promise<Buffer>
  /**
   * Returns the bytes of a layer and verifies them meanwhile. A failure is not retried, because the caller may have
   * used some of the bytes already.
   */
  openBlob(descriptor: Descriptor, signal: AbortSignal): AsyncIterable<Buffer>
  /** Whether the registry has asked for the caller's credential and accepted it. */
  hasUsedCredential(): boolean
}

export type RegistryClientDeps = {
  readonly clock: Clock
  readonly http: GuardedHttp
  readonly timeouts: RegistryTimeouts
  readonly limits: ImageLimits
}

const MANIFEST_TYPES = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.docker.distribution.manifest.v2+json',
].join(', ')

/** Creates a client for the repository of `reference`. It sends no request yet. */
export function makeRegistryClient(
  deps: RegistryClientDeps,
  reference: ImageReference,
  auth: RegistryAuth | null,
): RegistryClient {
  const { clock, http, timeouts, limits } = deps
  const base = new URL(registryUrl(reference.registry))
  const name = canonicalReference(reference)
  let authorization: string | null = null
  let hasUsedCredential = false

  async function authorize(reply: RegistryReply, signal: AbortSignal): Promise<boolean> {
    const challenge = parseChallenge(reply.header('www-authenticate') ?? '')
    if (challenge === null) return false
    const { repository } = reference
    authorization = await answerChallenge(challenge, {
      http,
      registry: reference.registry,
      challengedFrom: reply.reach,
      repository,
      auth,
      timeouts,
      maxBytes: limits.documentBytes,
      signal,
    })
    if (authorization !== null && auth !== null) hasUsedCredential = true
    return authorization !== null
  }

  // Sends a request. After a 401 it authenticates, at most once for each request, and sends the request again. The
  // first 401 that this client gets asks for authentication; a later one means that the token has expired.
  async function send(method: 'GET' | 'HEAD', path: string, signal: AbortSignal): Promise<RegistryReply> {
    const url = new URL(`/v2/${reference.repository}/${path}`, base)
    const request = { http, registry: reference.registry, url, method, timeouts, signal, linkedFrom: null }
    const headers = { accept: path.startsWith('manifests/') ? MANIFEST_TYPES : '*/*' }
    const requestHeaders = (): Record<string, string> =>
      authorization === null ? headers : { ...headers, authorization }
    const reply = await sendToRegistry({ ...request, headers: requestHeaders() })
    if (reply.status !== 401) return reply
    reply.discard()
    return (await authorize(reply, signal)) ? sendToRegistry({ ...request, headers: requestHeaders() }) : reply
  }

  function refusal(status: number): StartError {
    const registry = reference.registry
    if (status === 401 || status === 403) {
      const what =
        auth === null
          ? 'without a credential; add one for this registry or check the name'
          : 'with this credential; check its user name, password and rights'
      return new StartError('registry', `registry ${registry} refuses ${name} ${what}`)
    }
    if (status === 404)
      return new StartError('image', `image ${name} is not at registry ${registry}; check its name and tag`)
    if (status === 429)
      return new StartError(
        'registry',
        `registry ${registry} limits how often ${name} may be pulled; use a credential or try later`,
      )
    if (status >= 500)
      return new TransientRegistryError(
        'registry',
        `registry ${registry} failed with status ${String(status)} for ${name}; try later`,
      )
    return new StartError(
      'registry',
      `registry ${registry} answered ${name} with the unexpected status ${String(status)}`,
    )
  }

  async function get(path: string, signal: AbortSignal): Promise<RegistryReply> {
    const reply = await send('GET', path, signal)
    if (reply.status === 200) return reply
    reply.discard()
    throw refusal(reply.status)
  }

  async function getManifest(
    key: string,
    signal: AbortSignal,
  ): Promise<{ readonly bytes: Buffer; readonly digest: string }> {
    return withRetries(clock, signal, async () => {
      const reply = await get(`manifests/${key}`, signal)
      const digest = isDigest(key) ? key : null
      const bytes = await readBlob(reply.body, { digest, sizeBytes: null, maxBytes: limits.documentBytes })
      return { bytes, digest: digestOf(bytes) }
    })
  }

  return {
    getManifest,
    async headManifest(key, signal) {
      const head = await withRetries(clock, signal, async () => {
        const reply = await send('HEAD', `manifests/${key}`, signal)
        reply.discard()
        if (reply.status === 200 || reply.status === 404) return reply
        throw refusal(reply.status)
      })
      if (head.status === 404) return null
      if (isDigest(key)) return key
      const digest = head.header('docker-content-digest')
      return digest !== null && isDigest(digest) ? digest : (await getManifest(key, signal)).digest
    },
    getSmallBlob: (descriptor, signal) =>
      withRetries(clock, signal, async () => {
        const { body } = await get(`blobs/${descriptor.digest}`, signal)
        return readBlob(body, { digest: descriptor.digest, sizeBytes: descriptor.size, maxBytes: limits.documentBytes })
      }),
    async *openBlob(descriptor, signal) {
      const { body } = await get(`blobs/${descriptor.digest}`, signal)
      yield* verifyBlob(body, {
        digest: descriptor.digest,
        sizeBytes: descriptor.size,
        maxBytes: limits.compressedLayerBytes,
      })
    },
    hasUsedCredential: () => hasUsedCredential,
  }
}

function isDigest(text: string): boolean {
  return /^sha256:[0-9a-f]{64}$/.test(text)
}
