import type { WriteDeps, FenceDeps } from '../control/deps.ts'
import { doSnapshotTask } from '../control/snapshots/do-snapshot-task.ts'
import { PATIENCE_MS, takeSnapshot, type TakeSnapshotDeps } from '../control/snapshots/take-snapshot.ts'
import { SNAPSHOTS_TOPIC } from '../control/topics.ts'
import { Problem } from '../domain/problem.ts'
import * as snapshotWork from '../store/snapshots/snapshot-work.ts'
import type { Loop } from './loop.ts'

type WorkedOn = { readonly id: string; readonly org_id: string; readonly worker_id: string }
type MakeSnapshotsDeps = TakeSnapshotDeps & WriteDeps & FenceDeps

/** How many snapshots are made or deleted at the same time: in all, of one organization, and on one worker. */
const AT_ONCE = 32
const OF_ORG_AT_ONCE = 2
const ON_WORKER_AT_ONCE = 4
/** How many snapshots a pass looks at. */
const LOOKED_AT = 256
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
  /** The organization and the worker of each snapshot that is worked on. */
  const underWay = new Map<string, readonly string[]>()
  const countOf = (one: string): number => [...underWay.values()].filter((held) => held.includes(one)).length
  const isBusy = ({ org_id, worker_id }: WorkedOn): boolean =>
    countOf(org_id) >= OF_ORG_AT_ONCE || countOf(worker_id) >= ON_WORKER_AT_ONCE
  /** Begins the work unless it is under way, or there is enough of it. Never rejects. */
  const begin = (snapshot: WorkedOn, work: () => Promise<void>): void => {
    const { id, org_id, worker_id } = snapshot
    if (underWay.has(id) || underWay.size >= AT_ONCE || isBusy(snapshot)) return
    underWay.set(id, [org_id, worker_id])
    void work()
      .catch((error: unknown) => {
        if (!(error instanceof Problem))
          deps.log.warn({ error, snapshot_id: id }, 'the work on a snapshot failed; will retry')
      })
      .finally(() => {
        underWay.delete(id)
        if (queued > 0) deps.notifications.publish([SNAPSHOTS_TOPIC])
      })
  }
  let queued = 0
  return {
    name: 'make-snapshots',
    periodMs: PERIOD_MS,
    topics: [SNAPSHOTS_TOPIC],
    async run(signal) {
      const now = deps.clock.now()
      const before = (ms: number): Date => new Date(now.getTime() - ms)
      const kept = { failedBefore: before(FAILED_KEPT_MS), unnamedBefore: before(FORK_LIMIT_MS), limit: DISCARDS, now }
      const [toTake, toDiscard] = await deps.db.asSystem(async (q) => {
        const open = await snapshotWork.toTake(q, { now, givenUpBefore: before(PATIENCE_MS), limit: LOOKED_AT })
        return [open, await snapshotWork.toDiscard(q, kept)] as const
      })
      for (const snapshot of toTake) begin(snapshot, () => takeSnapshot(deps, snapshot, signal))
      for (const snapshot of toDiscard) begin(snapshot, () => discard(deps, snapshot, signal))
      queued = [...toTake, ...toDiscard].filter(({ id }) => !underWay.has(id)).length
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
