import type { Duplex } from 'node:stream'
import type { StreamPurpose } from '../../contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { joinSignals } from '../../lib/join-signals.ts'

/** The worker to open a stream to, and the purpose of the stream. */
export type StreamTarget = { readonly worker_id: WorkerId; readonly purpose: StreamPurpose }

/** Asks a worker for a stream. Resolves once the worker has dialed in, or with null when too many streams are being opened. */
export type WorkerStreams = {
  readonly openStream: (target: StreamTarget, signal: AbortSignal) => Promise<Duplex | null>
}

/** How long a worker may take to dial in, in milliseconds. The public client gives up after 10 s. */
const DIAL_TIMEOUT_MS = 8_000

/**
 * Opens a stream to a worker. Throws `unavailable`, with the given message, when the worker does not dial in within the
 * time limit or too many streams are being opened. It throws the same when `signal` aborts.
 */
export async function openWorkerStream<Stream>(
  { openStream }: { readonly openStream: (target: StreamTarget, signal: AbortSignal) => Promise<Stream | null> },
  target: StreamTarget,
  {
    signal,
    messages,
  }: { readonly signal: AbortSignal; readonly messages: { readonly late: string; readonly full: string } },
): Promise<Stream> {
  using limit = joinSignals(signal, AbortSignal.timeout(DIAL_TIMEOUT_MS))
  try {
    const stream = await openStream(target, limit.signal)
    if (stream !== null) return stream
  } catch (error) {
    if (!limit.signal.aborted) throw error
    throw new Problem('unavailable', { message: messages.late, retryAfterSeconds: 1, cause: error })
  }
  throw new Problem('unavailable', { message: messages.full, retryAfterSeconds: 1 })
}
