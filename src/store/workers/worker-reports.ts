/**
 * Reports of many workers, recorded by one statement. A fleet of 10,000 workers sends a thousand reports a second, and ten
 * thousand at once after a restart of the control plane: no lease may end meanwhile.
 */
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import type { ReportPosition } from '../../domain/workers/lease.ts'
import type { Statement } from '../postgres/database.ts'
import type { OpenRunOfWorker } from '../sandboxes/runs.ts'
import { GENERATION, IS_LATER, type DrainState, type Renewal, type WorkerReport } from './workers.ts'

/** How long the leases last that a statement prolongs. */
export type LeaseTimes = { readonly now: Date; readonly expiresAt: Date }

/** A report that says the same as the one before it, from a worker that knows this generation. */
export type UnchangedReport = ReportPosition & {
  readonly worker_id: WorkerId
  readonly known_generation: number
  /** The credential that must be the worker's; null: it was checked a moment ago. */
  readonly credentialSha256: Buffer | null
}

/** A worker whose lease was prolonged. */
export type ProlongedLease = DrainState & { readonly worker_id: WorkerId }

/**
 * Prolongs the leases of workers that have nothing new to say and nothing new to hear, and returns their rows. For the
 * others it writes nothing: their generation was raised, their lease is over, they were removed, the credential is not theirs,
 * or a later report or another incarnation was recorded before. At most one report for each worker.
 */
export function prolongLeases(reports: readonly UnchangedReport[], lease: LeaseTimes): Statement {
  const rows = reports.map(({ worker_id, incarnation, seq, known_generation, credentialSha256 }) => {
    return { worker_id, incarnation, seq, known_generation, credential: credentialSha256?.toString('hex') ?? null }
  })
  return {
    name: 'workerReports.prolongLeases',
    text: `UPDATE workers w SET lease_expires_at = $2, report_seq = u.seq
           FROM (
             SELECT w.id, p.seq
             FROM json_to_recordset($1::json) AS p(worker_id uuid, incarnation uuid, seq bigint, known_generation bigint,
               credential text) JOIN workers w ON w.id = p.worker_id
             WHERE w.removed_at IS NULL AND w.credential_sha256 = coalesce(decode(p.credential, 'hex'), w.credential_sha256)
               AND w.life = p.incarnation AND w.report_seq < p.seq AND w.lease_expires_at >= $3
               AND ${GENERATION} = p.known_generation
             ORDER BY w.id FOR NO KEY UPDATE OF w) u
           WHERE w.id = u.id RETURNING w.id AS worker_id, w.draining_since, w.drain_deadline_at`,
    values: [JSON.stringify(rows), lease.expiresAt, lease.now],
  }
}

/** A report with news about the worker itself and none about its volumes. */
export type ReportWithoutVolumes = Omit<WorkerReport, 'now' | 'leaseExpiresAt'> & {
  readonly worker_id: WorkerId
  /** Sandboxes whose writable layer is stored there and that do not run. */
  readonly stopped_sandboxes: readonly SandboxId[]
}

/** A worker whose report was recorded. */
export type RecordedReportRow = Renewal & {
  readonly worker_id: WorkerId
  /** Whether a volume that is to be deleted was never held there, as far as the worker has reported. */
  readonly has_emptied: boolean
  readonly open: readonly OpenRunOfWorker[]
  /** Whether volumes lie there, or one of `stopped_sandboxes` is gone: `open` may not be all that the answer must say. */
  readonly has_more: boolean
  /** As of the same moment as `open`. */
  readonly generation: number
}

/**
 * Does what `workers.renew`, `volumeReports.record` and `runs.ofWorker` do in a transaction, and returns a row for each
 * worker whose report was recorded. A missing one was overtaken or removed. At most one report for each worker.
 */
export function recordReports(reports: readonly ReportWithoutVolumes[], lease: LeaseTimes): Statement {
  const rows = reports.map(({ worker_id, incarnation, seq, capacity, driver, storage, stopped_sandboxes }) => {
    return {
      worker_id,
      incarnation,
      seq,
      ...capacity,
      driver,
      storage,
      is_shared: storage.is_shared,
      stopped_sandboxes,
    }
  })
  return {
    name: 'workerReports.recordReports',
    text: `WITH p AS MATERIALIZED (
             SELECT * FROM json_to_recordset($1::json) AS p(worker_id uuid, incarnation uuid, seq bigint, vcpus integer,
               memory_mib integer, disk_mib bigint, driver jsonb, storage jsonb, is_shared boolean, stopped_sandboxes json)),
           old AS MATERIALIZED (
             SELECT w.id, w.lease_expires_at, w.vcpus, w.memory_mib, w.storage FROM p JOIN workers w ON w.id = p.worker_id
             WHERE w.removed_at IS NULL AND ${IS_LATER({ incarnation: 'p.incarnation', seq: 'p.seq', now: '$3' })}
             ORDER BY w.id FOR NO KEY UPDATE OF w),
           renewed AS (
             UPDATE workers w SET vcpus = p.vcpus, memory_mib = p.memory_mib, disk_mib = p.disk_mib, driver = p.driver,
               lease_expires_at = $2, life = p.incarnation, report_seq = p.seq, storage = p.storage
             FROM p JOIN old ON old.id = p.worker_id WHERE w.id = p.worker_id
             RETURNING w.id, w.draining_since, w.drain_deadline_at, old.lease_expires_at IS NULL OR old.lease_expires_at < $3
               OR old.vcpus < w.vcpus OR old.memory_mib < w.memory_mib OR old.storage IS DISTINCT FROM w.storage AS adds_capacity),
           emptied AS (
             UPDATE volumes v SET emptied_at = $3 FROM renewed n JOIN p ON p.worker_id = n.id
             WHERE v.status = 'deleting' AND v.emptied_at IS NULL AND (v.home_worker_id = n.id OR v.is_shared AND p.is_shared)
               AND v.used_bytes IS NULL RETURNING n.id)
           SELECT w.id AS worker_id, w.draining_since, w.drain_deadline_at, w.adds_capacity, ${GENERATION} AS generation,
             EXISTS (SELECT 1 FROM emptied e WHERE e.id = w.id) AS has_emptied,
             p.is_shared OR EXISTS (SELECT 1 FROM volumes v WHERE v.home_worker_id = w.id AND v.emptied_at IS NULL)
               OR EXISTS (SELECT 1 FROM json_array_elements_text(p.stopped_sandboxes) AS t(id)
                 JOIN sandboxes s ON s.id = t.id::uuid WHERE s.visible_until IS NOT NULL) AS has_more,
             coalesce((SELECT json_agg(json_build_object('run_id', r.id, 'sandbox_id', r.sandbox_id, 'status', s.status,
                 'stop_cause', r.stop_cause) ORDER BY r.id) FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
               WHERE r.worker_id = w.id AND r.ended_at IS NULL), '[]') AS open
           FROM renewed w JOIN p ON p.worker_id = w.id`,
    values: [JSON.stringify(rows), lease.expiresAt, lease.now],
  }
}
