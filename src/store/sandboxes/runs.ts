/** Queries of runs for loops and workers. `sandbox-states.ts` writes runs. */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { CauseCode, SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { RegistrySelection } from '../../domain/spec/spec.ts'
import type { Queryable } from '../postgres/database.ts'

/** An open run of a worker, with the values that are compared with the worker's report. */
export type OpenRunOfWorker = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly status: SandboxStatus
  /** Why the run was asked to stop. Null: it was not asked. */
  readonly stop_cause: CauseCode | null
  /** How many of its processes the kernel is known to have killed because memory ran out. */
  readonly memory_kills: number
  /** Rises with each change of secrets that the run must get. */
  readonly secrets_version: number
}

/** The open runs of a worker, in the order of their ids. */
export async function ofWorker(q: Queryable, worker: WorkerId): Promise<readonly OpenRunOfWorker[]> {
  const { rows } = await q.query<OpenRunOfWorker>({
    name: 'runs.ofWorker',
    text: `SELECT r.id AS run_id, r.sandbox_id, s.status, r.stop_cause, r.memory_kills, s.secrets_version FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
           WHERE r.worker_id = $1 AND r.ended_at IS NULL ORDER BY r.id`,
    values: [worker],
  })
  return rows
}

/** A run of which the kernel killed more processes because memory ran out than was known. */
export type MemoryKillsOfRun = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly memory_mib: number
  readonly worker: string
}

/** Raises the number of killed processes of a run. Returns null, and writes nothing, if it is not higher than the known one. */
export async function raiseMemoryKills(q: Queryable, run: RunId, count: number): Promise<MemoryKillsOfRun | null> {
  const { rows } = await q.query<MemoryKillsOfRun>({
    name: 'runs.raiseMemoryKills',
    text: `UPDATE runs r SET memory_kills = $2 FROM sandboxes s, workers w
           WHERE r.id = $1 AND r.memory_kills < $2 AND s.id = r.sandbox_id AND w.id = r.worker_id
           RETURNING r.id AS run_id, r.sandbox_id, r.org_id, s.name, r.memory_mib, w.name AS worker`,
    values: [run, count],
  })
  return rows[0] ?? null
}

/** A run assigned to a worker, with the data that the worker needs to start it. */
export type RunAssignment = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  /** The organization's slug. */
  readonly org: string
  readonly status: SandboxStatus
  /** Differs after each change of what is below, except for limits and names. */
  readonly version: string
  /** A `SandboxSpec` as JSON text. */
  readonly spec_json: string
  /** The abilities that `spec_json` needs of a worker. */
  readonly abilities: readonly string[]
  readonly registry:
    Exclude<RegistrySelection, { readonly mode: 'inline' }> | { readonly mode: 'inline'; readonly username: string }
  readonly registry_sealed: Buffer | null
  /** The values of the secrets in `spec`. Null if there are none, or if the sandbox was deleted. */
  readonly secrets_sealed: Buffer | null
  /** The key of the authority in `spec`. Null if it has none, or if the sandbox was deleted. */
  readonly tls_key_sealed: Buffer | null
  readonly opened_at: Date
  readonly secrets_version: number
  /** The secrets that the run keeps. Null: it has those of its sandbox. */
  readonly run_secrets_sealed: Buffer | null
  readonly default_disk_max_mib: number | null
  /** How many sandboxes of the organization may run at once. Null: unlimited. */
  readonly max_running: number | null
  readonly max_vcpus_per_sandbox: number | null
  readonly max_memory_mib_per_sandbox: number | null
  /** Whether the organization stores any credential of a registry. */
  readonly has_credentials: boolean
  /** The ranges of addresses that the operator opened for the organization. */
  readonly network_allow: readonly string[]
}

/** Versions of runs as a worker knows them: `RunAssignment.version` by the run's id. */
export type KnownRuns = Readonly<Record<RunId, string>>

/**
 * An open run of a worker without the rest: the worker knows its version, or must only learn that it stops. With `is_later`, it gets the
 * rest in a later answer.
 */
export type KnownAssignment = Pick<
  RunAssignment,
  'run_id' | 'sandbox_id' | 'org_id' | 'status' | 'secrets_version' | 'version'
> & { readonly spec_json: null; readonly is_later: boolean }

/**
 * SQL: the part of a run's status that a worker must know. Only a start gets the credential of a registry, so a run that may have one is
 * sent again once it runs, without it. For others, `starting` and `running` are the same.
 */
const SENT_STATUS = `CASE WHEN s.status = 'stopping' THEN 'stopped'
             WHEN s.status = 'starting' AND (s.registry_sealed IS NOT NULL OR EXISTS (SELECT FROM registry_credentials c WHERE c.org_id = r.org_id))
               THEN 'starting'
             ELSE 'running' END`

/** SQL: the bytes of a run that a worker gets. `spec_bytes` is null in a row of an earlier version. */
const RUN_BYTES = `coalesce(spec_bytes, octet_length(spec::text)) + coalesce(octet_length(secrets_sealed), 0) + coalesce(octet_length(run_secrets_sealed), 0)`

/**
 * The assignments of a worker's open runs, in the order of their ids. Those with a version in `known` come without the
 * rest: with a hundred runs on the worker, all specifications took 0.5 ms of each start and each stop (2026-11). So do
 * those of `known` that must stop, and those that come after `maxBytes` of others. The versions are an object of
 * `jsonb`, because the planner may compare each run with each element of an array. `LIMIT 1` keeps it from looking up
 * the organization of each run, which took a third longer.
 */
export async function assignmentsOf(
  q: Queryable,
  worker: WorkerId,
  known: KnownRuns,
  maxBytes: number,
): Promise<readonly (RunAssignment | KnownAssignment)[]> {
  const { rows } = await q.query<RunAssignment | KnownAssignment>({
    name: 'runs.assignmentsOf',
    text: `WITH open AS MATERIALIZED (
             SELECT r.id AS run_id, r.sandbox_id, r.org_id, s.status, s.secrets_version, ${SENT_STATUS} || ' ' || s.secrets_version AS version,
               s.name, s.slug, s.spec, s.spec_bytes, s.abilities, s.registry, s.registry_sealed, s.secrets_sealed, s.tls_key_sealed, r.opened_at,
               r.secrets_sealed AS run_secrets_sealed
             FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id WHERE r.worker_id = $1 AND r.ended_at IS NULL)
           SELECT r.run_id, r.sandbox_id, r.org_id, r.status, r.secrets_version, r.version, r.is_changed AND rest.spec_json IS NULL AS is_later, rest.*
           FROM (SELECT *, sum(${RUN_BYTES}) FILTER (WHERE is_changed)
                   OVER (ORDER BY run_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
                 FROM (SELECT *, $2::jsonb ->> run_id::text IS DISTINCT FROM version AND NOT (status = 'stopping' AND $2::jsonb ? run_id::text) AS is_changed
                       FROM open) o) r
             LEFT JOIN LATERAL
               (SELECT r.name, r.slug, o.slug AS org, r.spec::text AS spec_json, r.abilities, r.registry, r.registry_sealed, r.secrets_sealed, r.tls_key_sealed,
                  r.opened_at, r.run_secrets_sealed, l.max_disk_size_mib_per_sandbox AS default_disk_max_mib, o.network_allow,
                  l.max_concurrent_ephemeral_running + l.max_concurrent_persistent_running AS max_running,
                  l.max_vcpus_per_sandbox, l.max_memory_mib_per_sandbox,
                  EXISTS (SELECT FROM registry_credentials c WHERE c.org_id = r.org_id) AS has_credentials
                FROM org_limits l JOIN orgs o ON o.id = l.org_id
                WHERE l.org_id = r.org_id AND r.is_changed AND coalesce(r.bytes_before, 0) < $3 LIMIT 1) rest ON true
           ORDER BY r.run_id`,
    values: [worker, JSON.stringify(known), maxBytes],
  })
  return rows
}

/** Whether a sandbox has or had a run with this id. */
export async function existed(q: Queryable, sandbox: SandboxId, run: RunId): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'runs.existed',
    text: 'SELECT 1 AS opened FROM runs WHERE id = $2 AND sandbox_id = $1',
    values: [sandbox, run],
  })
  return rowCount > 0
}

/** A run that is assigned to a worker. */
export type PlacedRun = { readonly run_id: RunId; readonly worker_id: WorkerId }

/** The open run of a sandbox with its worker. Null if the sandbox has no open run, or if the run is not placed yet. */
export async function placedRunOf(q: Queryable, sandbox: SandboxId): Promise<PlacedRun | null> {
  const { rows } = await q.query<PlacedRun>({
    name: 'runs.placedRunOf',
    text: `SELECT id AS run_id, worker_id FROM runs WHERE sandbox_id = $1 AND ended_at IS NULL AND worker_id IS NOT NULL`,
    values: [sandbox],
  })
  return rows[0] ?? null
}

/** A run that is or was assigned to a worker. */
export type LastRun = {
  readonly run_id: RunId
  readonly worker_id: WorkerId
  readonly is_open: boolean
}

/** The latest run of a sandbox that was placed, or null. */
export async function lastPlacedRunOf(q: Queryable, sandbox: SandboxId): Promise<LastRun | null> {
  const { rows } = await q.query<LastRun>({
    name: 'runs.lastPlacedRunOf',
    text: `SELECT id AS run_id, worker_id, ended_at IS NULL AS is_open FROM runs
           WHERE sandbox_id = $1 AND worker_id IS NOT NULL ORDER BY opened_at DESC, id DESC LIMIT 1`,
    values: [sandbox],
  })
  return rows[0] ?? null
}
