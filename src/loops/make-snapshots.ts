import type { WriteDeps, FenceDeps } from '../control/deps.ts'
import { doSnapshotTask } from '../control/snapshots/do-snapshot-task.ts'
import { takeSnapshot, type TakeSnapshotDeps } from '../control/snapshots/take-snapshot.ts'
import { SNAPSHOTS_TOPIC } from '../control/topics.ts'
import { Problem } from '../domain/problem.ts'
import * as snapshotWork from '../store/snapshots/snapshot-work.ts'
import type { Loop } from './loop.ts'

type MakeSnapshotsDeps = TakeSnapshotDeps & WriteDeps & FenceDeps

/** How many snapshots are made at the same time. */
const AT_ONCE = 16
const PERIOD_MS = 2_000
/** The maximum number of snapshots whose data one pass deletes. */
const DISCARDS = 50
/** How long clients can read why a snapshot failed. */
const FAILED_KEPT_MS = 24 * 3_600_000
/** A fork admits its sandboxes within this time after its snapshot is complete. */
const FORK_LIMIT_MS = 10 * 60_000

/**
 * Makes queued snapshots and deletes the data of those that nobody needs. A pass only begins the work on a snapshot, because a large
 * disk takes minutes.
 */
export function makeSnapshotsLoop(deps: MakeSnapshotsDeps): Loop {
  const underWay = new Set<string>()
  /** Begins the work unless it is under way. Never rejects. */
  const begin = (id: string, work: () => Promise<void>): void => {
    if (underWay.has(id) || underWay.size >= AT_ONCE) return
    underWay.add(id)
    void work()
      .catch((error: unknown) => {
        if (!(error instanceof Problem))
          deps.log.warn({ error, snapshot_id: id }, 'the work on a snapshot failed; will retry')
      })
      .finally(() => {
        underWay.delete(id)
      })
  }
  return {
    name: 'make-snapshots',
    periodMs: PERIOD_MS,
    topics: [SNAPSHOTS_TOPIC],
    async run(signal) {
      const nowMs = deps.clock.now().getTime()
      const kept = { failedBefore: new Date(nowMs - FAILED_KEPT_MS), unnamedBefore: new Date(nowMs - FORK_LIMIT_MS) }
      const [toTake, toDiscard] = await deps.db.asSystem(async (q) => {
        return [
          await snapshotWork.toTake(q, AT_ONCE * 2),
          await snapshotWork.toDiscard(q, { ...kept, limit: DISCARDS }),
        ] as const
      })
      for (const snapshot of toTake) begin(snapshot.id, () => takeSnapshot(deps, snapshot, signal))
      for (const snapshot of toDiscard) begin(snapshot.id, () => discard(deps, snapshot, signal))
      return null
    },
  }
}

async function discard(
  deps: MakeSnapshotsDeps,
  { id, worker_id, is_worker_gone }: snapshotWork.SnapshotToDiscard,
  signal: AbortSignal,
): Promise<void> {
  if (!is_worker_gone) {
    const answer = await doSnapshotTask(deps, worker_id, { task: { do: 'discard', snapshot_id: id }, signal })
    if ('failed' in answer && answer.failed.code !== 'unsupported') return
  }
  await deps.db.transaction('system', async (tx) => {
    await deps.fence?.(tx)
    await snapshotWork.forget(tx, id)
  })
}
