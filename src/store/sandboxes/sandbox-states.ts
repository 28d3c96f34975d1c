/**
 * Where sandboxes stand: status and open run, read under a lock and written together, many at once. Only
 * `control/sandboxes/transition.ts` may import this file: it is the one writer of sandbox status.
 */
import { EVENT_TYPES } from '../../domain/events/event-types.ts'
import type { RunId, SandboxId } from '../../domain/ids.ts'
import * as arrays from '../postgres/binary-array.ts'
import type { Queryable } from '../postgres/database.ts'
import { HAS_NO_COUNT_LIMITS, withinSizes } from '../orgs/quotas.ts'
import type { NewRun, SandboxStateRow, TransitionWrite } from './sandbox-state-rows.ts'

/**
 * Locks the rows of sandboxes, one after another in the order of their ids: who locks several can't wait for one who waits
 * for them. What is not there is left out. The runs are read when all locks are had: together with the sandboxes they
 * would be seen as they were when the wait for a lock began, so that a stop which waited for a start left its run open.
 */
export async function lock(tx: Queryable, ids: readonly SandboxId[]): Promise<readonly SandboxStateRow[]> {
  const ordered = arrays.uuids([...new Set(ids)].toSorted())
  const { rows } = await tx.query<Omit<SandboxStateRow, keyof OpenRun> & { readonly stopped_at: Date | null }>({
    name: 'sandboxStates.lock',
    text: `SELECT s.id, s.org_id, s.name, s.slug, s.status, s.status_reason, s.ephemeral,
             s.visible_until IS NOT NULL AS is_hidden, s.stopped_at, s.vcpus, s.memory_mib, s.max_duration_secs, s.disk_size_mib,
             (SELECT l.max_uptime_minutes_per_sandbox FROM org_limits l WHERE l.org_id = s.org_id) AS max_uptime_minutes,
             EXISTS (SELECT 1 FROM sandbox_volumes v WHERE v.sandbox_id = s.id) AS mounts_volumes
           FROM unnest($1::uuid[]) AS w(id), LATERAL (SELECT * FROM sandboxes WHERE id = w.id FOR UPDATE) s`,
    values: [ordered],
  })
  const { rows: runs } = await tx.query<OpenRun & { readonly sandbox_id: SandboxId }>({
    name: 'sandboxStates.openRuns',
    text: `SELECT w.id AS sandbox_id, r.id AS run_id, r.worker_id, greatest(r.opened_at, r.started_at) AS latest_at
           FROM unnest($1::uuid[]) AS w(id), LATERAL (
             SELECT id, worker_id, opened_at, started_at FROM runs WHERE sandbox_id = w.id AND ended_at IS NULL LIMIT 1) r`,
    values: [ordered],
  })
  const runOf = new Map(runs.map(({ sandbox_id, ...run }) => [sandbox_id, run]))
  return rows.map(({ stopped_at, ...row }) => {
    const run = runOf.get(row.id) ?? NO_RUN
    return { ...row, ...run, latest_at: later(stopped_at, run.latest_at) }
  })
}

type OpenRun = Pick<SandboxStateRow, 'run_id' | 'worker_id' | 'latest_at'>

function later(one: Date | null, other: Date | null): Date | null {
  if (one === null || other === null) return one ?? other
  return one > other ? one : other
}

const NO_RUN: OpenRun = { run_id: null, worker_id: null, latest_at: null }

/**
 * Writes transitions of different sandboxes in one statement, which is prepared once. For PostgreSQL's planner, LIMIT by a
 * parameter makes one row of the many: it walks indexes then, however small the tables were when it made the plan.
 */
export async function write(tx: Queryable, written: readonly TransitionWrite[]): Promise<void> {
  await tx.query({ name: 'sandboxStates.write', text: WRITE, values: [written.length, ...columnArrays(written)] })
}

const WRITE = `WITH w AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::boolean[],
        $8::timestamptz[], $9::uuid[], $10::boolean[], $11::uuid[], $12::uuid[], $13::timestamptz[], $14::timestamptz[],
        $15::timestamptz[], $16::integer[], $17::timestamptz[], $18::text[], $19::timestamptz[], $20::json[],
        $21::uuid[], $22::uuid[], $23::timestamptz[], $24::text[], $25::text[], $26::json[], $27::json[], $28::uuid[], $29::timestamptz[])
      AS r(id, status, status_reason, last_failure_message, started_at, sets_stopped_at,
        stopped_at, home_worker_id, forgets_secret, run_id, worker_id, placed_at, run_started_at,
        deadline_at, disk_mib, stop_requested_at, stop_cause, ended_at, outcome,
        event_id, org_id, timestamp, category, event_type, actor, payload, latest_run_id, waits_since) LIMIT $1::bigint),
  s AS (
    UPDATE sandboxes s SET status = w.status, status_reason = w.status_reason,
      last_failure_message = coalesce(w.last_failure_message, s.last_failure_message),
      started_at = coalesce(w.started_at, s.started_at),
      stopped_at = CASE WHEN w.sets_stopped_at THEN w.stopped_at ELSE s.stopped_at END,
      home_worker_id = coalesce(w.home_worker_id, s.home_worker_id),
      run_id = coalesce(w.latest_run_id, s.run_id),
      registry_sealed = CASE WHEN w.forgets_secret THEN NULL ELSE s.registry_sealed END
    FROM w WHERE s.id = w.id),
  r AS (
    UPDATE runs r SET worker_id = coalesce(w.worker_id, r.worker_id), placed_at = coalesce(w.placed_at, r.placed_at),
      started_at = coalesce(w.run_started_at, r.started_at), deadline_at = coalesce(w.deadline_at, r.deadline_at),
      disk_mib = coalesce(w.disk_mib, r.disk_mib), waits_since = coalesce(w.waits_since, r.waits_since),
      stop_requested_at = coalesce(w.stop_requested_at, r.stop_requested_at),
      stop_cause = coalesce(w.stop_cause, r.stop_cause), ended_at = coalesce(w.ended_at, r.ended_at),
      outcome = coalesce(w.outcome::jsonb, r.outcome)
    FROM w WHERE r.id = w.run_id)
  INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
  SELECT event_id, org_id, timestamp, category, event_type, id, actor, payload FROM w`

/** The values of `$2` to `$29`: one array a column. */
function columnArrays(written: readonly TransitionWrite[]): readonly Buffer[] {
  const sandboxes = written.map(({ sandbox }) => sandbox.change)
  const runs = written.map(({ run }) => run?.change ?? {})
  const events = written.map(({ event }) => event)
  return [
    arrays.uuids(written.map(({ sandbox }) => sandbox.id)),
    arrays.texts(sandboxes.map(({ status }) => status)),
    arrays.texts(sandboxes.map(({ status_reason }) => status_reason)),
    arrays.texts(sandboxes.map(({ last_failure_message }) => last_failure_message ?? null)),
    arrays.instants(sandboxes.map(({ started_at }) => started_at ?? null)),
    arrays.booleans(sandboxes.map(({ stopped_at }) => stopped_at !== undefined)),
    arrays.instants(sandboxes.map(({ stopped_at }) => stopped_at ?? null)),
    arrays.uuids(sandboxes.map(({ home_worker_id }) => home_worker_id ?? null)),
    arrays.booleans(sandboxes.map(({ forget_registry_secret }) => forget_registry_secret === true)),
    arrays.uuids(written.map(({ run }) => (run === null || Object.keys(run.change).length === 0 ? null : run.id))),
    arrays.uuids(runs.map(({ worker_id }) => worker_id ?? null)),
    arrays.instants(runs.map(({ placed_at }) => placed_at ?? null)),
    arrays.instants(runs.map(({ started_at }) => started_at ?? null)),
    arrays.instants(runs.map(({ deadline_at }) => deadline_at ?? null)),
    arrays.integers(runs.map(({ disk_mib }) => disk_mib ?? null)),
    arrays.instants(runs.map(({ stop_requested_at }) => stop_requested_at ?? null)),
    arrays.texts(runs.map(({ stop_cause }) => stop_cause ?? null)),
    arrays.instants(runs.map(({ ended_at }) => ended_at ?? null)),
    arrays.jsons(runs.map(({ outcome }) => (outcome === undefined ? null : JSON.stringify(outcome)))),
    arrays.uuids(events.map(({ id }) => id)),
    arrays.uuids(events.map(({ org_id }) => org_id)),
    arrays.instants(events.map(({ timestamp }) => timestamp)),
    arrays.texts(events.map(({ event_type }) => EVENT_TYPES[event_type].category)),
    arrays.texts(events.map(({ event_type }) => event_type)),
    arrays.jsons(events.map(({ actor }) => JSON.stringify(actor))),
    arrays.jsons(events.map(({ payload }) => JSON.stringify(payload))),
    arrays.uuids(sandboxes.map(({ run_id }) => run_id ?? null)),
    arrays.instants(runs.map(({ waits_since }) => waits_since ?? null)),
  ]
}

/**
 * Opens runs and answers the ids of those that are open now. One of an organization that is suspended, has counts to keep,
 * or allows no sandbox so large is left out: it must be judged under the organization's lock. `isJudged`: they were. A
 * second open run of a sandbox violates `runs_one_open`.
 */
export async function openRuns(
  tx: Queryable,
  opened: readonly NewRun[],
  how: { readonly isQuotaChecked: boolean },
): Promise<ReadonlySet<RunId>> {
  const { rows } = await tx.query<{ readonly id: RunId }>({
    name: 'sandboxStates.openRuns.insert',
    text: `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at)
           SELECT w.id, w.org_id, w.sandbox_id, w.vcpus, w.memory_mib, coalesce(w.disk_mib, 0), w.is_ephemeral, w.opened_at
           FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::integer[], $6::integer[], $7::boolean[],
               $8::timestamptz[]) AS w(id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at)
             JOIN org_limits l ON l.org_id = w.org_id
           WHERE $9 OR (NOT l.is_suspended AND ${HAS_NO_COUNT_LIMITS} AND ${SIZES_FIT}) RETURNING id`,
    values: [
      arrays.uuids(opened.map(({ id }) => id)),
      arrays.uuids(opened.map(({ org_id }) => org_id)),
      arrays.uuids(opened.map(({ sandbox_id }) => sandbox_id)),
      arrays.integers(opened.map(({ vcpus }) => vcpus)),
      arrays.integers(opened.map(({ memory_mib }) => memory_mib)),
      arrays.integers(opened.map(({ disk_size_mib }) => disk_size_mib)),
      arrays.booleans(opened.map(({ ephemeral }) => ephemeral)),
      arrays.instants(opened.map(({ opened_at }) => opened_at)),
      how.isQuotaChecked,
    ],
  })
  return new Set(rows.map(({ id }) => id))
}

/** A start of a sandbox that may run longer than allowed is ended at the limit, not refused. */
const SIZES_FIT = withinSizes({
  vcpus: 'w.vcpus',
  memory_mib: 'w.memory_mib',
  disk_mib: 'w.disk_mib',
  max_duration_secs: 'NULL::bigint',
})
