import type { Duplex } from 'node:stream'
import type { SnapshotAnswer, SnapshotTask } from '../../contract/snapshots/snapshot-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { openWorkerStream, type WorkerStreams } from '../streams/open-worker-stream.ts'

/** The longest answer of a worker, in bytes. */
const ANSWER_LIMIT_BYTES = 64 * 1024

const STREAM_MESSAGES = {
  late: 'the worker with the disk did not answer',
  full: 'too many streams are being opened',
} as const

/**
 * Lets a worker do a task about a snapshot. Throws `unavailable` if the worker can't be reached, and another error if the stream
 * broke. The task may be repeated then.
 */
export async function doSnapshotTask(
  deps: WorkerStreams,
  worker_id: WorkerId,
  { task, signal }: { readonly task: SnapshotTask; readonly signal: AbortSignal },
): Promise<SnapshotAnswer> {
  const target = { worker_id, purpose: { kind: 'snapshot', task } } as const
  const stream = await openWorkerStream(deps, target, { signal, messages: STREAM_MESSAGES })
  const hangUp = (): void => {
    stream.destroy(new Error('the task was given up'))
  }
  signal.addEventListener('abort', hangUp, { once: true })
  try {
    return JSON.parse(await readAll(stream)) as SnapshotAnswer // from this program's own worker, of the same protocol version
  } finally {
    signal.removeEventListener('abort', hangUp)
    stream.destroy()
  }
}

async function readAll(stream: Duplex): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  const pieces: AsyncIterable<Buffer> = stream
  for await (const piece of pieces) {
    bytes += piece.length
    if (bytes > ANSWER_LIMIT_BYTES)
      throw new Error(`a worker answered with more than ${String(ANSWER_LIMIT_BYTES)} bytes`)
    chunks.push(piece)
  }
  return Buffer.concat(chunks).toString('utf8')
}
