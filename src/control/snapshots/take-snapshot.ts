import type { TakenSnapshot } from '../../contract/snapshots/snapshot-protocol.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import type { Queryable } from '../../store/postgres/session.ts'
import * as snapshotWork from '../../store/snapshots/snapshot-work.ts'
import type { BaseDeps, FenceDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import type { WorkerStreams } from '../streams/open-worker-stream.ts'
import { snapshotTopic } from '../topics.ts'
import { doSnapshotTask } from './do-snapshot-task.ts'
import { resultOf } from './snapshot-result.ts'
import { storageRefusal } from './storage-refusal.ts'

export type TakeSnapshotDeps = WriteDeps & FenceDeps & WorkerStreams & Pick<BaseDeps, 'notifications' | 'log'>

/** How long a worker that can't be reached is asked again. Clients wait for half an hour. */
export const PATIENCE_MS = 25 * 60_000

type Failure = { readonly code: string; readonly message: string }

/**
 * Makes a queued snapshot, or fails it. May be repeated, also while a worker still does what an earlier call asked. Resolves without
 * an end if the worker can't be reached now.
 */
export async function takeSnapshot(
  deps: TakeSnapshotDeps,
  snapshot: snapshotWork.SnapshotToTake,
  signal: AbortSignal,
): Promise<void> {
  const { id, sandbox_id, worker_id, records_integrity } = snapshot
  if (snapshot.has_lost_source) {
    await end(deps, snapshot, (tx) =>
      fail(deps, tx, snapshot, { code: 'sandbox_not_found', message: 'the sandbox or its worker is gone' }),
    )
    return
  }
  // Snapshots that were queued before this one may have used up the storage meanwhile.
  const refusal =
    snapshot.status === 'queued' ? await deps.db.asSystem((q) => storageRefusal(q, snapshot.org_id)) : null
  if (refusal !== null) {
    const { code, message } = refusal
    await end(deps, snapshot, (tx) => fail(deps, tx, snapshot, { code, message }))
    return
  }
  await deps.db.asSystem((q) => snapshotWork.begin(q, id, deps.clock.now()))
  const task = { do: 'take', snapshot_id: id, sandbox_id, records_integrity } as const
  try {
    const answer = await doSnapshotTask(deps, worker_id, { task, signal })
    if ('failed' in answer) await end(deps, snapshot, (tx) => fail(deps, tx, snapshot, answer.failed))
    else if (answer.taken !== null) await complete(deps, snapshot, answer.taken)
  } catch (error) {
    if (signal.aborted) return
    deps.log.warn({ error, snapshot_id: id, worker_id }, 'a snapshot could not be made now; will retry')
    if (deps.clock.now().getTime() - snapshot.created_at.getTime() < PATIENCE_MS) return
    const message = error instanceof Problem ? error.message : 'the worker failed'
    await end(deps, snapshot, (tx) => fail(deps, tx, snapshot, { code: 'worker_unreachable', message }))
  }
}

async function complete(
  deps: TakeSnapshotDeps,
  snapshot: snapshotWork.SnapshotToTake,
  taken: TakenSnapshot,
): Promise<void> {
  const result = resultOf(snapshot, taken, deps.clock.now())
  try {
    await end(deps, snapshot, async (tx) => {
      const replaced = await snapshotWork.complete(tx, snapshot.id, result)
      const { id: snapshot_id, org_id, name, sandbox_id } = snapshot
      if (replaced === null || name === null) return
      const by = { org_id, actor: SYSTEM_ACTOR }
      for (const { id } of replaced)
        await recordEvent(deps, tx, { ...by, event_type: 'snapshot_deleted', payload: { snapshot_id: id, name } })
      const payload = { snapshot_id, name, sandbox_id, size_bytes: taken.taken_bytes }
      await recordEvent(deps, tx, { ...by, event_type: 'snapshot_created', payload })
    })
  } catch (error) {
    if (violatedConstraint(error) !== 'snapshots_name_key') throw error
    const message = 'another snapshot got the name meanwhile'
    await end(deps, snapshot, (tx) => fail(deps, tx, snapshot, { code: 'snapshot_name_already_exists', message }))
  }
}

async function fail(
  deps: TakeSnapshotDeps,
  tx: Queryable,
  { id, org_id, name, sandbox_id }: snapshotWork.SnapshotToTake,
  error: Failure,
): Promise<void> {
  if (!(await snapshotWork.fail(tx, id, { error, now: deps.clock.now() })) || name === null) return
  const payload = { snapshot_id: id, name, sandbox_id, message: error.message }
  await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'snapshot_failed', payload })
}

async function end(
  deps: TakeSnapshotDeps,
  { id }: Pick<snapshotWork.SnapshotToTake, 'id'>,
  write: (tx: Queryable) => Promise<void>,
): Promise<void> {
  await deps.db.transaction('system', async (tx) => {
    await deps.fence?.(tx)
    await write(tx)
  })
  deps.notifications.publish([snapshotTopic(id)])
}
