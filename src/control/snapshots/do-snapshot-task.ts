import type { SnapshotAnswer, SnapshotTask } from '../../contract/snapshots/snapshot-protocol.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { askWorker } from '../streams/ask-worker.ts'
import type { WorkerStreams } from '../streams/open-worker-stream.ts'

/** The longest answer of a worker, in bytes. */
const ANSWER_LIMIT_BYTES = 64 * 1024

/** Lets a worker do a task about a snapshot. Throws as `askWorker` does. The task may be repeated then. */
export async function doSnapshotTask(
  deps: WorkerStreams,
  worker_id: WorkerId,
  { task, signal }: { readonly task: SnapshotTask; readonly signal: AbortSignal },
): Promise<SnapshotAnswer> {
  const target = { worker_id, purpose: { kind: 'snapshot', task } } as const
  return (await askWorker(deps, target, { signal, limitBytes: ANSWER_LIMIT_BYTES })) as SnapshotAnswer
}
