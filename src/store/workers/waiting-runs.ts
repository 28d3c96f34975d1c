/** Runs that a placement pass found no capacity for. */
import type { OrgId, SandboxId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'
import { NEEDS_OF_VOLUMES } from '../volumes/volume-mounts.ts'
import { IS_WAITING, PENDING_RUN, type PendingRun } from './capacity.ts'

/** A waiting run, and the number of runs that wait. */
export type WaitingRun = PendingRun & {
  /** The run's position in the queue, from 1. */
  readonly position: number
  readonly waiting: number
}

/** The sandbox that waits the longest for capacity. */
export type OldestWaiting = {
  readonly sandbox_id: SandboxId
  readonly name: string
  readonly org_id: OrgId
  /** The organization's slug. */
  readonly org: string
  readonly waits_since: Date
}

/** Finds the sandbox that waits the longest for capacity, or null if none waits. */
export async function oldestWaiting(q: Queryable): Promise<OldestWaiting | null> {
  const { rows } = await q.query<OldestWaiting>({
    name: 'waitingRuns.oldestWaiting',
    text: `SELECT r.sandbox_id, s.name, s.org_id, o.slug AS org, r.waits_since
           FROM (SELECT * FROM runs r WHERE ${IS_WAITING} ORDER BY r.opened_at, r.id LIMIT 1) r
             JOIN sandboxes s ON s.id = r.sandbox_id JOIN orgs o ON o.id = s.org_id`,
  })
  return rows[0] ?? null
}

/** The waiting run of a sandbox, or null. Counting stops at `countLimit` + 1 runs. */
export async function findWaiting(q: Queryable, sandbox: SandboxId, countLimit: number): Promise<WaitingRun | null> {
  const { rows } = await q.query<WaitingRun>({
    name: 'waitingRuns.findWaiting',
    text: `WITH mine AS (SELECT r.id, r.opened_at FROM runs r WHERE r.sandbox_id = $1 AND ${IS_WAITING})
           SELECT ${PENDING_RUN},
             (SELECT count(*)::integer FROM (SELECT 1 FROM runs r WHERE ${IS_WAITING} LIMIT $2 + 1) w) AS waiting,
             (SELECT count(*)::integer FROM (SELECT 1 FROM runs r, mine WHERE ${IS_WAITING}
               AND (r.opened_at, r.id) <= (mine.opened_at, mine.id) LIMIT $2 + 1) w) AS position
           FROM mine JOIN runs r ON r.id = mine.id JOIN sandboxes s ON s.id = r.sandbox_id
             CROSS JOIN LATERAL (${NEEDS_OF_VOLUMES}) n`,
    values: [sandbox, countLimit],
  })
  return rows[0] ?? null
}

/** A waiting run as operators see it. */
export type ListedWaitingRun = PendingRun & {
  readonly name: string
  readonly slug: string
  /** The slug of its organization. */
  readonly org: string
  readonly waits_since: Date
}

/** The runs that wait, in the order of the queue. At most `limit`. */
export async function list(q: Queryable, limit: number): Promise<readonly ListedWaitingRun[]> {
  const { rows } = await q.query<ListedWaitingRun>({
    name: 'waitingRuns.list',
    text: `SELECT ${PENDING_RUN}, s.name, s.slug, o.slug AS org, r.waits_since
           FROM (SELECT * FROM runs r WHERE ${IS_WAITING} ORDER BY r.opened_at, r.id LIMIT $1) r
             JOIN sandboxes s ON s.id = r.sandbox_id JOIN orgs o ON o.id = s.org_id CROSS JOIN LATERAL (${NEEDS_OF_VOLUMES}) n
           ORDER BY r.opened_at, r.id`,
    values: [limit],
  })
  return rows
}

/** How many runs wait. Counting stops at `countLimit` + 1. */
export async function count(q: Queryable, countLimit: number): Promise<number> {
  const { rows } = await q.query<{ readonly waiting: number }>({
    name: 'waitingRuns.count',
    text: `SELECT count(*)::integer AS waiting FROM (SELECT 1 FROM runs r WHERE ${IS_WAITING} LIMIT $1 + 1) w`,
    values: [countLimit],
  })
  return rows[0]?.waiting ?? 0
}
