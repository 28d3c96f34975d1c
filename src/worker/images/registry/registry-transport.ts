import type { Clock } from '../../../lib/clock.ts'
import type { GuardedHttp, GuardedReply } from '../../../lib/outbound/guarded-http.ts'
import { StartError } from '../../start-error.ts'

/** How long a registry may be silent, in milliseconds. */
export type RegistryTimeouts = {
  /** The limit from the request to the head of the response. */
  readonly replyMs: number
  /** The limit between two chunks of a body. */
  readonly idleMs: number
}

export const DEFAULT_REGISTRY_TIMEOUTS: RegistryTimeouts = { replyMs: 30_000, idleMs: 30_000 }

/** The time limit for one request with its body. A layer of the largest size needs 2.4 MB/s. */
const TOTAL_MS = 2 * 3_600_000
/** A bound against endless replies. Whoever reads a body has a tighter limit of its own (`verifyBlob`). */
const BODY_BYTES = 64 * 1024 ** 3

type RegistryRequest = {
  readonly http: GuardedHttp
  readonly url: URL
  readonly method: 'GET' | 'HEAD'
  readonly headers: Readonly<Record<string, string>>
  readonly timeouts: RegistryTimeouts
  readonly signal: AbortSignal
  /** The registry's host, for messages. */
  readonly registry: string
  /** Where the reply came from that contained the URL. Null if the caller made the URL itself. */
  readonly linkedFrom: GuardedReply['reach'] | null
}

/** A registry's reply. Its body throws `TransientRegistryError` when the connection breaks or is silent for too long. */
export type RegistryReply = GuardedReply

/**
 * Sends one request and follows redirects. Rejects with `TransientRegistryError` and one text, whether the address is
 * closed, the name unknown, the port closed, or the connection broken. So texts tell a tenant nothing about hosts inside.
 * Time doesn't either: a closed address is never dialled, and all of these are tried equally often (`withRetries`).
 */
export async function sendToRegistry(request: RegistryRequest): Promise<RegistryReply> {
  const { http, registry, timeouts, signal } = request
  const toFailure = (error: unknown): StartError =>
    signal.aborted
      ? new StartError('cancelled', 'the pull was cancelled', signal.reason)
      : new TransientRegistryError('registry', unreachable(registry), error)
  const limits = { ...timeouts, totalMs: TOTAL_MS, bodyBytes: BODY_BYTES }
  const headers = { 'accept-encoding': 'identity', ...request.headers }
  const reply = await http.send({ ...request, headers, limits }).catch((error: unknown) => {
    throw toFailure(error)
  })
  return { ...reply, body: withFailures(reply.body, toFailure) }
}

function unreachable(registry: string): string {
  return (
    `registry ${registry} could not be reached: its address is not allowed, or nothing answers there. Check its name; ` +
    'the operator opens private registries by SANDYARD_REGISTRIES_ALLOWED, and names a proxy by HTTPS_PROXY'
  )
}

async function* withFailures(
  body: AsyncIterable<Uint8Array>,
  toFailure: (error: unknown) => StartError,
): AsyncGenerator<Uint8Array> {
  const chunks = body[Symbol.asyncIterator]()
  try {
    for (;;) {
      const next = await chunks.next().catch((error: unknown) => {
        throw toFailure(error)
      })
      if (next.done === true) return
      yield next.value
    }
  } finally {
    await chunks.return?.() // closes the connection when the reader stops early
  }
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
