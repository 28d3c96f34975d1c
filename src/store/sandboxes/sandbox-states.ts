/**
 * The state of sandboxes: their status and open run. Callers lock the rows of many sandboxes, read them, and write them
 * together. Only `control/sandboxes/transition.ts` may import this file, because it is the only writer of sandbox
 * status.
 */
import { EVENT_TYPES } from '../../domain/events/event-types.ts'
import type { RunId, SandboxId } from '../../domain/ids.ts'
import { RESTART_LABEL } from '../../domain/sandboxes/restart.ts'
import { uuids } from '../postgres/binary-array.ts'
import * as column from '../postgres/column-list.ts'
import type { Queryable, Transaction } from '../postgres/database.ts'
import { orderedId } from '../events/event-ids.ts'
import { HAS_NO_COUNT_LIMITS, withinSizes } from '../orgs/quotas.ts'
import type { NewRun, SandboxStateRow, TransitionWrite } from './sandbox-state-rows.ts'

/**
 * Locks the rows of sandboxes and returns their states. Ids without a row are left out. Rows are locked in the order of
 * their ids, so that two callers can't deadlock. A second statement reads the runs once all locks are acquired. A
 * single statement would read the runs as they were before its wait for a lock. For example, a stop that waited for a
 * start would not see the started run and would leave it open.
 */
export async function lock(tx: Queryable, ids: readonly SandboxId[]): Promise<readonly SandboxStateRow[]> {
  const ordered = uuids([...new Set(ids)].toSorted())
  const locked = tx.query<Omit<SandboxStateRow, keyof OpenRun> & { readonly stopped_at: Date | null }>({
    name: 'sandboxStates.lock',
    isRead: true,
    text: `SELECT s.id, s.org_id, s.name, s.slug, s.status, s.status_reason, s.ephemeral,
             s.visible_until IS NOT NULL AS is_hidden, s.stopped_at, s.vcpus, s.memory_mib, s.max_duration_secs, s.disk_size_mib,
             s.home_worker_id, s.run_id AS latest_run_id, s.restart_at, s.restart_count,
             (SELECT l.value FROM sandbox_labels l WHERE l.sandbox_id = s.id AND l.key = '${RESTART_LABEL}') AS restart_policy,
             (SELECT l.max_uptime_minutes_per_sandbox FROM org_limits l WHERE l.org_id = s.org_id) AS max_uptime_minutes,
             EXISTS (SELECT 1 FROM sandbox_volumes v WHERE v.sandbox_id = s.id) AS mounts_volumes
           FROM ${column.idRows('$1', 'w')}, LATERAL (SELECT * FROM sandboxes WHERE id = w.id FOR UPDATE) s`,
    values: [ordered],
  })
  const read = tx.query<OpenRun & { readonly sandbox_id: SandboxId }>({
    name: 'sandboxStates.openRuns',
    isRead: true,
    text: `SELECT w.id AS sandbox_id, r.*, greatest(r.opened_at, r.started_at) AS latest_at
           FROM ${column.idRows('$1', 'w')}, LATERAL (
             SELECT id AS run_id, worker_id, opened_at, placed_at, trace_parent, started_at, stop_cause
             FROM runs WHERE sandbox_id = w.id AND ended_at IS NULL LIMIT 1) r`,
    values: [ordered],
  })
  const [{ rows }, { rows: runs }] = await Promise.all([locked, read])
  const runOf = new Map(runs.map(({ sandbox_id, ...run }) => [sandbox_id, run]))
  return rows.map(({ stopped_at, ...row }) => {
    const run = runOf.get(row.id) ?? NO_RUN
    return { ...row, ...run, latest_at: later(stopped_at, run.latest_at) }
  })
}

type OpenRun = Pick<
  SandboxStateRow,
  'run_id' | 'worker_id' | 'opened_at' | 'placed_at' | 'trace_parent' | 'started_at' | 'stop_cause' | 'latest_at'
>

function later(one: Date | null, other: Date | null): Date | null {
  if (one === null || other === null) return one ?? other
  return one > other ? one : other
}

const NO_RUN: OpenRun = {
  run_id: null,
  worker_id: null,
  opened_at: null,
  placed_at: null,
  trace_parent: null,
  started_at: null,
  stop_cause: null,
  latest_at: null,
}

/**
 * The columns of a transition: those of the sandbox, of its run (prefixed `run_` where both have the name), and of its
 * event.
 */
const TRANSITIONS = column.columnList<TransitionWrite>({
  id: column.uuid(({ sandbox }) => sandbox.id),
  status: column.text(({ sandbox }) => sandbox.change.status),
  status_reason: column.text(({ sandbox }) => sandbox.change.status_reason),
  last_failure_message: column.text(({ sandbox }) => sandbox.change.last_failure_message ?? null),
  started_at: column.timestamptz(({ sandbox }) => sandbox.change.started_at ?? null),
  sets_stopped_at: column.boolean(({ sandbox }) => sandbox.change.stopped_at !== undefined),
  stopped_at: column.timestamptz(({ sandbox }) => sandbox.change.stopped_at ?? null),
  home_worker_id: column.uuid(({ sandbox }) => sandbox.change.home_worker_id ?? null),
  forgets_secret: column.boolean(({ sandbox }) => sandbox.change.forget_registry_secret === true),
  latest_run_id: column.uuid(({ sandbox }) => sandbox.change.run_id ?? null),
  isolation: column.text(({ sandbox }) => sandbox.change.isolation ?? null),
  restart_at: column.timestamptz(({ sandbox }) => sandbox.change.restart_at),
  restart_count: column.integer(({ sandbox }) => sandbox.change.restart_count ?? null),
  run_id: column.uuid(({ run }) => (run === null || Object.keys(run.change).length === 0 ? null : run.id)),
  worker_id: column.uuid(({ run }) => run?.change.worker_id ?? null),
  placed_at: column.timestamptz(({ run }) => run?.change.placed_at ?? null),
  waits_since: column.timestamptz(({ run }) => run?.change.waits_since ?? null),
  run_started_at: column.timestamptz(({ run }) => run?.change.started_at ?? null),
  deadline_at: column.timestamptz(({ run }) => run?.change.deadline_at ?? null),
  disk_mib: column.integer(({ run }) => run?.change.disk_mib ?? null),
  ports: column.json(({ run }) => (run?.change.ports === undefined ? null : JSON.stringify(run.change.ports))),
  stop_requested_at: column.timestamptz(({ run }) => run?.change.stop_requested_at ?? null),
  stop_cause: column.text(({ run }) => run?.change.stop_cause ?? null),
  ended_at: column.timestamptz(({ run }) => run?.change.ended_at ?? null),
  outcome: column.json(({ run }) => (run?.change.outcome === undefined ? null : JSON.stringify(run.change.outcome))),
  event_id: column.uuid(({ event }) => event.id),
  org_id: column.uuid(({ event }) => event.org_id),
  timestamp: column.timestamptz(({ event }) => event.timestamp),
  category: column.text(({ event }) => EVENT_TYPES[event.event_type].category),
  event_type: column.text(({ event }) => event.event_type),
  actor: column.json(({ event }) => JSON.stringify(event.actor)),
  payload: column.json(({ event }) => JSON.stringify(event.payload)),
})

/**
 * Writes transitions of different sandboxes in one prepared statement. The LIMIT exists only for PostgreSQL's planner.
 * With a parameter as the limit, the planner expects one row and uses indexes, even if the tables are small when it
 * plans.
 */
export function writeTransitions(tx: Transaction, transitions: readonly TransitionWrite[]): void {
  const values = [transitions.length, ...TRANSITIONS.valuesOf(transitions)]
  void tx.send({ name: 'sandboxStates.write', text: WRITE, values }) // a failure fails the transaction
}

const WRITE = `WITH w AS MATERIALIZED (SELECT * FROM ${TRANSITIONS.unnest({ alias: 'r', first: 2 })} LIMIT $1::bigint),
  s AS (
    UPDATE sandboxes s SET status = w.status, status_reason = w.status_reason,
      last_failure_message = coalesce(w.last_failure_message, s.last_failure_message),
      started_at = coalesce(w.started_at, s.started_at),
      stopped_at = CASE WHEN w.sets_stopped_at THEN w.stopped_at ELSE s.stopped_at END,
      home_worker_id = coalesce(w.home_worker_id, s.home_worker_id),
      run_id = coalesce(w.latest_run_id, s.run_id),
      isolation = CASE WHEN w.latest_run_id IS NULL THEN coalesce(w.isolation, s.isolation) END,
      restart_at = w.restart_at, restart_count = coalesce(w.restart_count, s.restart_count),
      registry_sealed = CASE WHEN w.forgets_secret THEN NULL ELSE s.registry_sealed END
    FROM w WHERE s.id = w.id),
  r AS (
    UPDATE runs r SET worker_id = coalesce(w.worker_id, r.worker_id), placed_at = coalesce(w.placed_at, r.placed_at),
      started_at = coalesce(w.run_started_at, r.started_at), deadline_at = coalesce(w.deadline_at, r.deadline_at),
      disk_mib = coalesce(w.disk_mib, r.disk_mib), ports = coalesce(w.ports::jsonb, r.ports), waits_since = coalesce(w.waits_since, r.waits_since),
      stop_requested_at = coalesce(w.stop_requested_at, r.stop_requested_at),
      stop_cause = coalesce(w.stop_cause, r.stop_cause), ended_at = coalesce(w.ended_at, r.ended_at),
      outcome = coalesce(w.outcome::jsonb, r.outcome),
      secrets_sealed = CASE WHEN w.ended_at IS NULL THEN r.secrets_sealed END
    FROM w WHERE r.id = w.run_id)
  INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
  SELECT ${orderedId({ id: 'w.event_id', org: 'w.org_id', sandbox: 'w.id' })}, org_id, timestamp, category, event_type, id, actor, payload FROM w`

const NEW_RUNS = column.columnList<NewRun>({
  id: column.uuid(({ id }) => id),
  org_id: column.uuid(({ org_id }) => org_id),
  sandbox_id: column.uuid(({ sandbox_id }) => sandbox_id),
  vcpus: column.integer(({ vcpus }) => vcpus),
  memory_mib: column.integer(({ memory_mib }) => memory_mib),
  disk_mib: column.integer(({ disk_size_mib }) => disk_size_mib),
  is_ephemeral: column.boolean(({ ephemeral }) => ephemeral),
  opened_at: column.timestamptz(({ opened_at }) => opened_at),
  trace_parent: column.text(({ trace_parent }) => trace_parent),
})

/**
 * Creates runs and returns the ids of those that were created. Unless `isQuotaChecked`, skips a run if its organization is
 * suspended, allows no sandbox of that size, or has a limit that must be counted (numbers of sandboxes or runs, used hours
 * under a hard limit). Check a skipped run under the organization's lock, then call again with `isQuotaChecked`. A second
 * open run of a sandbox violates `runs_one_open`.
 */
export async function openRuns(
  tx: Queryable,
  opened: readonly NewRun[],
  how: { readonly isQuotaChecked: boolean },
): Promise<ReadonlySet<RunId>> {
  const { rows } = await tx.query<{ readonly id: RunId }>({
    name: 'sandboxStates.openRuns.insert',
    text: OPEN_RUNS,
    values: [how.isQuotaChecked, ...NEW_RUNS.valuesOf(opened)],
  })
  return new Set(rows.map(({ id }) => id))
}

/**
 * SQL: whether the sandbox is within the size limits. The maximum duration is not checked: a run that lasts longer than
 * allowed is ended at the limit, not refused.
 */
const SIZES_FIT = withinSizes({
  vcpus: 'w.vcpus',
  memory_mib: 'w.memory_mib',
  disk_mib: 'w.disk_mib',
  max_duration_secs: 'NULL::bigint',
})

const OPEN_RUNS = `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, is_ephemeral, opened_at, trace_parent)
  SELECT w.id, w.org_id, w.sandbox_id, w.vcpus, w.memory_mib, coalesce(w.disk_mib, 0), w.is_ephemeral, w.opened_at, w.trace_parent
  FROM ${NEW_RUNS.unnest({ alias: 'w', first: 2 })} JOIN org_limits l ON l.org_id = w.org_id
  WHERE $1 OR (NOT l.is_suspended AND ${HAS_NO_COUNT_LIMITS} AND ${SIZES_FIT}) RETURNING id`
