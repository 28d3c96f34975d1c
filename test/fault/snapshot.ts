import type { RunId, SandboxId, WorkerId } from '../../src/domain/ids.ts'
import type { SandboxStatus } from '../../src/domain/sandboxes/lifecycle.ts'
import type { SimStore } from './sim-database.ts'

/** The columns of a sandbox that the invariants check. Times are milliseconds since 1970. */
export type SandboxRow = {
  readonly id: SandboxId
  readonly org_id: string
  readonly status: SandboxStatus
  readonly status_reason: string | null
  readonly visible_until: number | null
  readonly home_worker_id: WorkerId | null
  readonly name: string
  readonly ephemeral: boolean
  readonly restart_at: number | null
}

export type RunRow = {
  readonly id: RunId
  readonly sandbox_id: SandboxId
  readonly worker_id: WorkerId | null
  readonly vcpus: number
  readonly memory_mib: number
  readonly is_ephemeral: boolean
  readonly started_at: number | null
  readonly stop_requested_at: number | null
  readonly ended_at: number | null
  readonly outcome: string | null
  readonly message: string | null
  readonly stop_cause: string | null
}

/** The tables that `takeSnapshot` reads. */
export const SNAPSHOT_TABLES = ['sandboxes', 'runs', 'events', 'org_counts', 'org_count_deltas'] as const

/** The rows that the invariants check, as they were at one moment. */
export type Snapshot = {
  readonly sandboxes: ReadonlyMap<SandboxId, SandboxRow>
  /**
   * In the order in which the runs were opened. Their times don't show this order, because clocks of replicas may
   * differ.
   */
  readonly runs: ReadonlyMap<RunId, RunRow>
  /** The number of audit events, by `<sandbox> <event type>`. */
  readonly events: ReadonlyMap<string, number>
  /** What the counters of all organizations add up to. */
  readonly counts: Counts
}

export type Counts = { readonly sandboxes: number; readonly ephemeral_runs: number; readonly persistent_runs: number }

export const EMPTY_SNAPSHOT: Snapshot = {
  sandboxes: new Map(),
  runs: new Map(),
  events: new Map(),
  counts: { sandboxes: 0, ephemeral_runs: 0, persistent_runs: 0 },
}

type SandboxTuple = readonly [
  SandboxId,
  string,
  SandboxStatus,
  string | null,
  number | null,
  WorkerId | null,
  string,
  boolean,
  number | null,
]
type RunTuple = readonly [
  RunId,
  SandboxId,
  WorkerId | null,
  number,
  number,
  boolean,
  number | null,
  number | null,
  number | null,
  string | null,
  string | null,
  string | null,
]
type Row = {
  readonly sandboxes: readonly SandboxTuple[] | null
  readonly runs: readonly RunTuple[] | null
  readonly events: readonly (readonly [string, number])[] | null
  readonly counts: Counts
}

/** Reads a snapshot with one statement. Runs that are in `earlier` keep their order, and new ones follow. */
export async function takeSnapshot(store: SimStore, earlier: Snapshot): Promise<Snapshot> {
  const { rows } = await store.statement<Row>('system', {
    name: 'fault.snapshot',
    text: `SELECT
        (SELECT json_agg(json_build_array(id, org_id, status, status_reason, sandyard_ms(visible_until), home_worker_id, name, ephemeral,
           sandyard_ms(restart_at)) ORDER BY id) FROM sandboxes) AS sandboxes,
        (SELECT json_agg(json_build_array(id, sandbox_id, worker_id, vcpus, memory_mib, is_ephemeral, sandyard_ms(started_at),
           sandyard_ms(stop_requested_at), sandyard_ms(ended_at), outcome ->> 'kind', outcome ->> 'message', stop_cause)
           ORDER BY id) FROM runs) AS runs,
        (SELECT json_agg(json_build_array(e.of_type, e.many) ORDER BY e.of_type) FROM (
           SELECT sandbox_id || ' ' || event_type AS of_type, count(*) AS many FROM events
           WHERE sandbox_id IS NOT NULL GROUP BY 1) e) AS events,
        (SELECT json_build_object('sandboxes', coalesce(sum(sandboxes), 0), 'ephemeral_runs', coalesce(sum(ephemeral_runs), 0),
           'persistent_runs', coalesce(sum(persistent_runs), 0))
         FROM (SELECT * FROM org_counts UNION ALL SELECT * FROM org_count_deltas) c) AS counts`,
  })
  const [row] = rows
  if (row === undefined) throw new Error('the snapshot statement returned no row')
  return {
    sandboxes: new Map(
      (row.sandboxes ?? []).map(
        ([id, org_id, status, status_reason, visible_until, home_worker_id, name, ephemeral, restart_at]) => [
          id,
          { id, org_id, status, status_reason, visible_until, home_worker_id, name, ephemeral, restart_at },
        ],
      ),
    ),
    runs: inOrderOfOpening(new Map((row.runs ?? []).map((tuple) => [tuple[0], runOf(tuple)])), earlier),
    events: new Map(row.events ?? []),
    counts: row.counts,
  }
}

function inOrderOfOpening(runs: ReadonlyMap<RunId, RunRow>, earlier: Snapshot): Snapshot['runs'] {
  const positionOf = new Map([...earlier.runs.keys()].map((id, position) => [id, position]))
  return new Map(
    [...runs].sort(([a], [b]) => (positionOf.get(a) ?? positionOf.size) - (positionOf.get(b) ?? positionOf.size)),
  )
}

function runOf(tuple: RunTuple): RunRow {
  const [
    id,
    sandbox_id,
    worker_id,
    vcpus,
    memory_mib,
    is_ephemeral,
    started_at,
    stop_requested_at,
    ended_at,
    outcome,
    message,
    stop_cause,
  ] = tuple
  return {
    id,
    sandbox_id,
    worker_id,
    vcpus,
    memory_mib,
    is_ephemeral,
    started_at,
    stop_requested_at,
    ended_at,
    outcome,
    message,
    stop_cause,
  }
}
