import type { FenceDeps } from '../control/deps.ts'
import { createSnapshot, type CreateSnapshotDeps } from '../control/snapshots/create-snapshot.ts'
import { recordEvent } from '../control/events/record-event.ts'
import { deleteSnapshot } from '../control/snapshots/delete-snapshot.ts'
import type { SandboxId } from '../domain/ids.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import { Problem } from '../domain/problem.ts'
import { scheduledName, SNAPSHOT_LABEL } from '../domain/sandboxes/snapshot-schedule.ts'
import * as snapshotSchedules from '../store/snapshots/snapshot-schedules.ts'
import type { Log } from '../lib/log.ts'
import type { Loop } from './loop.ts'

type ScheduleDeps = CreateSnapshotDeps & FenceDeps & { readonly log: Log }

const PERIOD_MS = 60_000
/** How many sandboxes are read at once. */
const BATCH = 200
/** How long a sandbox whose snapshot was refused waits, for example because of a quota. */
const REFUSED_WAIT_MS = 3_600_000

/**
 * Begins the snapshots that the label of sandboxes asks for (`domain/sandboxes/snapshot-schedule.ts`), and deletes the
 * oldest beyond those that are kept. Quotas hold as for the request of a client.
 */
export function makeScheduleSnapshotsLoop(deps: ScheduleDeps): Loop {
  const refusedUntil = new Map<SandboxId, number>()
  return {
    name: 'schedule-snapshots',
    periodMs: PERIOD_MS,
    topics: [],
    async run(signal) {
      const now = deps.clock.now()
      for (const [id, untilMs] of refusedUntil) if (untilMs <= now.getTime()) refusedUntil.delete(id)
      let after: SandboxId | null = null
      do {
        signal.throwIfAborted()
        const question: Parameters<typeof snapshotSchedules.due>[1] = { now, after, limit: BATCH }
        const due = await deps.db.asSystem((q) => snapshotSchedules.due(q, question))
        for (const one of due) {
          if (refusedUntil.has(one.sandbox_id) || (await begin(deps, one, now))) continue
          refusedUntil.set(one.sandbox_id, now.getTime() + REFUSED_WAIT_MS)
        }
        after = due.length === BATCH ? (due.at(-1)?.sandbox_id ?? null) : null
      } while (after !== null)
      return (await deleteSurplus(deps)) ? 0 : null
    },
  }
}

/** Begins a snapshot. Returns false, after it recorded why, if the snapshot was refused. */
async function begin(deps: ScheduleDeps, due: snapshotSchedules.DueSnapshot, now: Date): Promise<boolean> {
  const { sandbox_id, org_id, slug, schedule } = due
  const acting = { org_id, actor: SYSTEM_ACTOR }
  const name = scheduledName(slug, now)
  const how = { replaces: false, records_integrity: false, is_scheduled: true } as const
  try {
    await createSnapshot(deps, acting, { ...how, sandbox_id, name, labels: { [SNAPSHOT_LABEL]: schedule } })
    return true
  } catch (error) {
    if (!(error instanceof Problem)) throw error
    const message = `${SNAPSHOT_LABEL}: ${error.message}; tried again in an hour`
    await deps.db.transaction('system', async (tx) => {
      await deps.fence?.(tx)
      const payload = { name, sandbox_id, message }
      await recordEvent(deps, tx, { ...acting, event_type: 'snapshot_failed', payload })
    })
    return false
  }
}

/** Deletes complete snapshots beyond those that are kept. Returns whether there may be more. */
async function deleteSurplus(deps: ScheduleDeps): Promise<boolean> {
  const surplus = await deps.db.asSystem((q) => snapshotSchedules.surplus(q, BATCH))
  for (const { id, org_id } of surplus) {
    try {
      await deleteSnapshot(deps, { org_id, actor: SYSTEM_ACTOR }, { id })
    } catch (error) {
      if (!(error instanceof Problem)) throw error // a client deleted it meanwhile
    }
  }
  return surplus.length === BATCH
}
