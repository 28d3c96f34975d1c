import { isLoopbackHost } from '../../domain/spec/image-reference.ts'
import { StartError } from '../start-error.ts'
import type { Clock } from '../../lib/clock.ts'

/** How long a registry may be silent, in milliseconds. */
export type RegistryTimeouts = {
  /** From the request to the head of the response. */
  readonly replyMs: number
  /** Between two chunks of a body. */
  readonly idleMs: number
}

export const DEFAULT_REGISTRY_TIMEOUTS: RegistryTimeouts = { replyMs: 30_000, idleMs: 30_000 }

type RegistryRequest = {
  readonly url: URL
  readonly method: 'GET' | 'HEAD'
  readonly headers: Readonly<Record<string, string>>
  readonly timeouts: RegistryTimeouts
  readonly signal: AbortSignal
}

export type RegistryReply = {
  readonly status: number
  readonly headers: Headers
  /**
   * The response body. It may be read once. Throws `TransientRegistryError` when the connection breaks or is silent for
   * too long.
   */
  readonly body: AsyncIterable<Uint8Array>
  /** Closes the connection without reading the body. */
  discard(): void
}

const MAX_REDIRECTS = 5
const REDIRECTS: ReadonlySet<number> = new Set([301, 302, 303, 307, 308])

/**
 * Sends one request and follows redirects. Only the first host receives the Authorization header. Blobs often come from
 * another host, which must not see the registry's password or token.
 */
export async function sendToRegistry(request: RegistryRequest): Promise<RegistryReply> {
  let { url, headers } = request
  for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
    const reply = await sendOnce({ ...request, url, headers })
    const location = reply.headers.get('location')
    if (!REDIRECTS.has(reply.status) || location === null) return reply
    reply.discard()
    const next = URL.parse(location, url.href)
    if (next === null || !isRedirectAllowed(url, next)) {
      throw new StartError('registry', `registry ${request.url.host} redirects to an address that is not allowed`)
    }
    if (next.origin !== url.origin) headers = withoutAuthorization(headers)
    url = next
  }
  throw new StartError('registry', `registry ${request.url.host} redirects more than ${String(MAX_REDIRECTS)} times`)
}

/**
 * Whether one URL may redirect to another. Redirects may go to HTTPS, or to plain HTTP on this machine. A redirect from
 * another host to this machine is never allowed.
 */
export function isRedirectAllowed(from: URL, to: URL): boolean {
  if (isLoopbackHost(to.host)) return isLoopbackHost(from.host) && (to.protocol === 'http:' || to.protocol === 'https:')
  return to.protocol === 'https:'
}

async function sendOnce({ url, method, headers, timeouts, signal }: RegistryRequest): Promise<RegistryReply> {
  const abort = new AbortController()
  const either = AbortSignal.any([signal, abort.signal])
  const failed = (error: unknown): StartError =>
    signal.aborted
      ? new StartError('cancelled', 'the pull was cancelled', signal.reason)
      : new TransientRegistryError(
          'registry',
          `registry ${url.host} could not be reached, or the connection broke; check its name and the network`,
          error,
        )

  const timer = setTimeout(() => {
    abort.abort(new Error('no reply in time'))
  }, timeouts.replyMs)
  let response: Response
  try {
    response = await fetch(url, {
      method,
      redirect: 'manual',
      signal: either,
      headers: { 'accept-encoding': 'identity', ...headers },
    })
  } catch (error) {
    throw failed(error)
  } finally {
    clearTimeout(timer)
  }
  return {
    status: response.status,
    headers: response.headers,
    body: readBody(response, { abort, idleMs: timeouts.idleMs, failed }),
    discard: () => {
      abort.abort()
    },
  }
}

type Reading = {
  readonly abort: AbortController
  readonly idleMs: number
  readonly failed: (error: unknown) => StartError
}

async function* readBody(response: Response, { abort, idleMs, failed }: Reading): AsyncGenerator<Uint8Array> {
  if (response.body === null) return
  const reader = response.body.getReader()
  try {
    for (;;) {
      const timer = setTimeout(() => {
        abort.abort(new Error('the body stalled'))
      }, idleMs)
      const piece = await reader
        .read()
        .catch((error: unknown) => {
          throw failed(error)
        })
        .finally(() => {
          clearTimeout(timer)
        })
      if (piece.done) return
      yield piece.value
    }
  } finally {
    abort.abort() // closes the connection when the reader stops early
  }
}

function withoutAuthorization(headers: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => name.toLowerCase() !== 'authorization'))
}

/** A failure of the network or of an overloaded registry. The same request may succeed later. */
export class TransientRegistryError extends StartError {}

/** The pauses before the second and the third attempt. The third attempt is the last. */
const PAUSES_MS = [200, 1_000] as const

/**
 * Repeats `attempt` while it fails with `TransientRegistryError`, at most three times in all. Throws the last failure.
 */
export async function withRetries<T>(clock: Clock, signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
  for (const pauseMs of PAUSES_MS) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof TransientRegistryError)) throw error
      await clock.sleep(pauseMs, signal).catch((reason: unknown) => {
        throw new StartError('cancelled', 'the pull was cancelled', reason)
      })
    }
  }
  return attempt()
}
