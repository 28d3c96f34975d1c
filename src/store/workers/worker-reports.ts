/**
 * Records reports of many workers with one statement. A fleet of 10,000 workers sends a thousand reports a second, and
 * ten thousand at once after a restart of the control plane. No lease may expire before its report is recorded.
 */
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import type { ReportPosition } from '../../domain/workers/lease.ts'
import type { Statement } from '../postgres/database.ts'
import type { OpenRunOfWorker } from '../sandboxes/runs.ts'
import { GENERATION, IS_LATER, type DrainState, type RecordedWorkerReport, type WorkerReport } from './workers.ts'

/** The time of the statement, and the new end of the leases that it extends. */
export type LeaseTimes = { readonly now: Date; readonly expiresAt: Date }

/** A report that is unchanged since the previous one, from a worker that knows its current generation. */
export type UnchangedReport = ReportPosition & {
  readonly worker_id: WorkerId
  readonly known_generation: number
  /** The credential to compare with the worker's. Null: it was compared a moment ago. */
  readonly credentialSha256: Buffer | null
}

/** A worker whose lease was extended. */
export type ProlongedLease = DrainState & { readonly worker_id: WorkerId }

/**
 * Extends the leases of workers that report no change and for which nothing has changed, and returns their rows. It
 * writes nothing for a worker whose generation was raised, whose lease has expired, that was removed or whose
 * credential differs. It also writes nothing if a later report, or a report of another incarnation, was recorded
 * before. Pass at most one report for each worker.
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

/** A report that may change the worker's own row, and that says nothing new about its volumes. */
export type ReportWithoutVolumes = Omit<WorkerReport, 'now' | 'leaseExpiresAt'> & {
  readonly worker_id: WorkerId
  /** Sandboxes that do not run and whose writable layer is stored on this worker. */
  readonly stopped_sandboxes: readonly SandboxId[]
  /** The credential to compare with the worker's. Absent or null: it was compared a moment ago. */
  readonly credentialSha256?: Buffer | null
}

/** A worker whose report was recorded. */
export type RecordedReportRow = RecordedWorkerReport & {
  readonly worker_id: WorkerId
  /**
   * Whether a volume of the worker is being deleted that the worker has never reported. It has no files, so its row can
   * be deleted.
   */
  readonly has_emptied: boolean
  readonly open: readonly OpenRunOfWorker[]
  /**
   * Whether the worker stores volumes, or one of `stopped_sandboxes` was deleted. The answer may then need more than
   * `open`.
   */
  readonly has_more: boolean
  /** The worker's generation, read at the same moment as `open`. */
  readonly generation: number
}

/**
 * Records reports as `workers.renew`, `volumeReports.record` and `runs.ofWorker` do in a transaction. Returns a row for
 * each worker whose report was recorded. A worker without a row was removed, has another credential, or a later report was
 * recorded before.
 * Pass at most one report for each worker.
 */
export function recordReports(reports: readonly ReportWithoutVolumes[], lease: LeaseTimes): Statement {
  const rows = reports.map(
    ({
      worker_id,
      incarnation,
      seq,
      capacity,
      driver,
      storage,
      stopped_sandboxes,
      disk = null,
      refused_claims = null,
      credentialSha256 = null,
    }) => {
      return {
        worker_id,
        incarnation,
        seq,
        ...capacity,
        driver,
        storage,
        disk,
        is_shared: storage.is_shared,
        stopped_sandboxes,
        refused_claims,
        credential: credentialSha256?.toString('hex') ?? null,
      }
    },
  )
  return {
    name: 'workerReports.recordReports',
    text: `WITH p AS MATERIALIZED (
             SELECT * FROM json_to_recordset($1::json) AS p(worker_id uuid, incarnation uuid, seq bigint, vcpus integer,
               memory_mib integer, disk_mib bigint, driver jsonb, storage jsonb, disk jsonb, is_shared boolean, stopped_sandboxes json,
               refused_claims text, credential text)),
           old AS MATERIALIZED (
             SELECT w.id, w.lease_expires_at, w.vcpus, w.memory_mib, w.storage FROM p JOIN workers w ON w.id = p.worker_id
             WHERE w.removed_at IS NULL AND w.credential_sha256 = coalesce(decode(p.credential, 'hex'), w.credential_sha256)
               AND ${IS_LATER({ incarnation: 'p.incarnation', seq: 'p.seq', now: '$3' })}
             ORDER BY w.id FOR NO KEY UPDATE OF w),
           renewed AS (
             UPDATE workers w SET vcpus = p.vcpus, memory_mib = p.memory_mib, disk_mib = p.disk_mib, driver = p.driver,
               lease_expires_at = $2, life = p.incarnation, report_seq = p.seq, storage = p.storage,
               refused_claims = p.refused_claims, disk = p.disk
             FROM p JOIN old ON old.id = p.worker_id WHERE w.id = p.worker_id
             RETURNING w.id, w.draining_since, w.drain_deadline_at, w.is_disk_short, old.lease_expires_at IS NULL OR old.lease_expires_at < $3
               OR old.vcpus < w.vcpus OR old.memory_mib < w.memory_mib OR old.storage IS DISTINCT FROM w.storage AS adds_capacity),
           emptied AS (
             UPDATE volumes v SET emptied_at = $3 FROM renewed n JOIN p ON p.worker_id = n.id
             WHERE v.status = 'deleting' AND v.emptied_at IS NULL AND (v.home_worker_id = n.id OR v.is_shared AND p.is_shared)
               AND v.used_bytes IS NULL RETURNING n.id)
           SELECT w.id AS worker_id, w.draining_since, w.drain_deadline_at, w.is_disk_short, w.adds_capacity, ${GENERATION} AS generation,
             EXISTS (SELECT 1 FROM emptied e WHERE e.id = w.id) AS has_emptied,
             p.is_shared OR EXISTS (SELECT 1 FROM volumes v WHERE v.home_worker_id = w.id AND v.emptied_at IS NULL)
               OR EXISTS (
                 SELECT FROM (
                   SELECT t.id::uuid FROM json_array_elements_text(p.stopped_sandboxes) AS t(id) LIMIT json_array_length(p.stopped_sandboxes)) t,
                   LATERAL (
                     SELECT FROM sandboxes WHERE id = t.id AND visible_until IS NOT NULL
                     UNION ALL SELECT FROM pruned_sandboxes WHERE id = t.id LIMIT 1) d) AS has_more,
             coalesce((SELECT json_agg(json_build_object('run_id', r.id, 'sandbox_id', r.sandbox_id, 'status', s.status,
                 'stop_cause', r.stop_cause, 'memory_kills', r.memory_kills, 'secrets_version', s.secrets_version) ORDER BY r.id) FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
               WHERE r.worker_id = w.id AND r.ended_at IS NULL), '[]') AS open
           FROM renewed w JOIN p ON p.worker_id = w.id`,
    values: [JSON.stringify(rows), lease.expiresAt, lease.now],
  }
}
