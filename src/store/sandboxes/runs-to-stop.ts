/** Open runs that must stop and have not yet been asked to stop: one query for each reason, in pages. */
import type { OrgId, RunId, SandboxId } from '../../domain/ids.ts'
import { NIL_UUID } from '../../lib/uuid.ts'
import type { Queryable, Statement } from '../postgres/database.ts'

/** An open run that has not been asked to stop yet. */
export type RunToStop = { readonly run_id: RunId; readonly sandbox_id: SandboxId }

/** A page of at most `limit` runs after a given run, in the order of their ids. */
export type RunsToStopPage = { readonly after: RunId | null; readonly limit: number }

/** Runs of workers whose drain deadline has passed. */
export function pastDrainDeadline(q: Queryable, now: Date, page: RunsToStopPage): Promise<readonly RunToStop[]> {
  const text = `SELECT r.id AS run_id, r.sandbox_id FROM workers w JOIN runs r ON r.worker_id = w.id
    WHERE w.drain_deadline_at <= $1 AND r.ended_at IS NULL AND r.stop_requested_at IS NULL`
  return pageOf(q, { name: 'runsToStop.pastDrainDeadline', text, values: [now] }, page)
}

/**
 * A run past its deadline. `is_by_org` is true if the deadline is the organization's limit, which is earlier than the
 * sandbox's own deadline.
 */
export type RunPastDeadline = RunToStop & { readonly is_by_org: boolean }

/** Open runs past their deadline. */
export function pastDeadline(q: Queryable, now: Date, page: RunsToStopPage): Promise<readonly RunPastDeadline[]> {
  const text = `SELECT r.id AS run_id, r.sandbox_id,
      (r.deadline_at >= r.started_at
        + make_interval(secs => (s.spec #>> '{lifecycle,max_duration_secs}')::double precision)) IS NOT TRUE AS is_by_org
    FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
    WHERE r.ended_at IS NULL AND r.stop_requested_at IS NULL AND r.deadline_at <= $1`
  return pageOf(q, { name: 'runsToStop.pastDeadline', text, values: [now] }, page)
}

/** The time at which the next run reaches its deadline, or null. */
export async function nextDeadline(q: Queryable): Promise<Date | null> {
  const { rows } = await q.query<{ readonly at: Date | null }>({
    name: 'runsToStop.nextDeadline',
    text: `SELECT min(deadline_at) AS at FROM runs WHERE ended_at IS NULL AND stop_requested_at IS NULL`,
  })
  return rows[0]?.at ?? null
}

/** Open runs of suspended organizations. */
export function ofSuspendedOrgs(q: Queryable, page: RunsToStopPage): Promise<readonly RunToStop[]> {
  const text = `SELECT r.id AS run_id, r.sandbox_id FROM orgs o JOIN runs r ON r.org_id = o.id
    WHERE o.suspended_at IS NOT NULL AND r.ended_at IS NULL AND r.stop_requested_at IS NULL`
  return pageOf(q, { name: 'runsToStop.ofSuspendedOrgs', text, values: [] }, page)
}

/** Open runs of an organization. */
export function ofOrg(q: Queryable, org: OrgId, page: RunsToStopPage): Promise<readonly RunToStop[]> {
  const text = `SELECT id AS run_id, sandbox_id FROM runs
    WHERE org_id = $1 AND ended_at IS NULL AND stop_requested_at IS NULL`
  return pageOf(q, { name: 'runsToStop.ofOrg', text, values: [org] }, page)
}

type Found = Pick<Statement, 'text'> & { readonly name: string; readonly values: readonly unknown[] }

/**
 * Reads a page of the runs that a query finds. The query finds them all by an index for its condition, and only then
 * are they sorted. In the order of the index of ids, PostgreSQL would read all runs that ever existed.
 */
async function pageOf<Run extends RunToStop>(
  q: Queryable,
  { name, text, values }: Found,
  { after, limit }: RunsToStopPage,
): Promise<readonly Run[]> {
  const [last, most] = [`$${String(values.length + 1)}`, `$${String(values.length + 2)}`]
  const { rows } = await q.query<Run>({
    name,
    text: `WITH due AS MATERIALIZED (${text}) SELECT * FROM due WHERE run_id > ${last}::uuid ORDER BY run_id LIMIT ${most}`,
    values: [...values, after ?? NIL_UUID, limit],
  })
  return rows
}
