import { Problem } from '../../domain/problem.ts'
import type { StreamTarget } from '../deps.ts'

/** How long a worker has to dial in for a stream: the client gives up after 10 s (agent protocol, section 1). */
const DIAL_TIMEOUT_MS = 8_000

/** The wake-up topic for a worker that has a ticket to take; published by whoever keeps the tickets. */
export function ticketTopic(worker: string): string {
  return `tickets:${worker}`
}

/**
 * A stream from a worker that was asked for one. Throws `unavailable`, in the words given, when it does not dial in in
 * time or too many streams are waited for; `signal` ends the wait like the time limit does.
 */
export async function openWorkerStream<Stream>(
  { openStream }: { readonly openStream: (target: StreamTarget, signal: AbortSignal) => Promise<Stream | null> },
  target: StreamTarget,
  { signal, words }: { readonly signal: AbortSignal; readonly words: { readonly late: string; readonly full: string } },
): Promise<Stream> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(DIAL_TIMEOUT_MS)])
  try {
    const stream = await openStream(target, limit)
    if (stream !== null) return stream
  } catch (error) {
    if (!limit.aborted) throw error
    throw new Problem('unavailable', { message: words.late, retryAfterSeconds: 1, cause: error })
  }
  throw new Problem('unavailable', { message: words.full, retryAfterSeconds: 1 })
}
