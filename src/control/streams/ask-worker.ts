import type { Duplex } from 'node:stream'
import { Problem } from '../../domain/problem.ts'
import { openWorkerStream, type StreamTarget, type WorkerStreams } from './open-worker-stream.ts'

const MESSAGES = {
  late: 'the worker did not answer',
  full: 'too many streams are being opened',
} as const

/** A worker's answer is longer than the caller allows, which is a bug. */
class AnswerTooLong extends Error {}

/**
 * Asks a worker for one answer, which it writes as JSON. The answer is of this program's own worker, of the same version of the
 * protocol. Throws `unavailable` if the worker can't be reached, if its stream ends before its answer does, or if `signal` aborts.
 * Throws another error if the answer is longer than `limitBytes`.
 */
export async function askWorker(
  deps: WorkerStreams,
  target: StreamTarget,
  { signal, limitBytes }: { readonly signal: AbortSignal; readonly limitBytes: number },
): Promise<unknown> {
  const stream = await openWorkerStream(deps, target, { signal, messages: MESSAGES })
  const hangUp = (): void => {
    stream.destroy(new Error('the question was given up'))
  }
  signal.addEventListener('abort', hangUp, { once: true })
  if (signal.aborted) hangUp()
  try {
    return JSON.parse(await readAll(stream, limitBytes)) // a part of an answer is no JSON
  } catch (error) {
    if (error instanceof AnswerTooLong) throw error
    throw new Problem('unavailable', { message: MESSAGES.late, retryAfterSeconds: 1, cause: error })
  } finally {
    signal.removeEventListener('abort', hangUp)
    stream.destroy()
  }
}

async function readAll(stream: Duplex, limitBytes: number): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  const pieces: AsyncIterable<Buffer> = stream
  for await (const piece of pieces) {
    bytes += piece.length
    if (bytes > limitBytes) throw new AnswerTooLong(`a worker answered with more than ${String(limitBytes)} bytes`)
    chunks.push(piece)
  }
  return Buffer.concat(chunks).toString('utf8')
}
