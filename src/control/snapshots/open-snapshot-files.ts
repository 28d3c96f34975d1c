import type { Duplex } from 'node:stream'
import type { SnapshotId, WorkerId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import * as snapshotWork from '../../store/snapshots/snapshot-work.ts'
import type { BaseDeps } from '../deps.ts'
import { openWorkerStream, type WorkerStreams } from '../streams/open-worker-stream.ts'

const MESSAGES = {
  late: 'the worker with the snapshot did not answer',
  full: 'too many streams are being opened',
} as const

/**
 * Opens the stream of a snapshot's files for a worker. Throws `snapshot_not_found` unless the worker has a run that needs them, and
 * `unavailable` if the worker that has them can't be reached.
 */
export async function openSnapshotFiles(
  deps: Pick<BaseDeps, 'db'> & WorkerStreams,
  { snapshot_id, reader }: { readonly snapshot_id: SnapshotId; readonly reader: WorkerId },
  signal: AbortSignal,
): Promise<Duplex> {
  const worker_id = await deps.db.asSystem((q) => snapshotWork.workerFor(q, snapshot_id, reader))
  if (worker_id === null) throw new Problem('snapshot_not_found')
  const target = { worker_id, purpose: { kind: 'snapshot_files', snapshot_id } } as const
  return await openWorkerStream(deps, target, { signal, messages: MESSAGES })
}
