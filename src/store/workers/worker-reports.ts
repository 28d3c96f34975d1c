import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import type { Statement } from '../postgres/database.ts'
import type { OpenRunOfWorker } from '../sandboxes/runs.ts'
import { PRINT } from './still-workers.ts'
import { IS_LATER, type Renewal, type WorkerReport } from './workers.ts'

/** What a worker says of itself that is new, and of its volumes nothing. */
export type BatchedReport = Omit<WorkerReport, 'now' | 'leaseExpiresAt'> & {
  readonly worker_id: WorkerId
  /** Sandboxes whose writable layer lies there and that do not run. */
  readonly resting: readonly SandboxId[]
}

/** What became of a report, with what it is to be compared with. */
export type RecordedReportRow = Renewal & {
  readonly worker_id: WorkerId
  /** Whether a volume that is to be deleted was never held there, as far as the worker has told. */
  readonly has_emptied: boolean
  readonly open: readonly OpenRunOfWorker[]
  /** Whether volumes lie there, or one of `resting` is gone: then there may be more to tell than `open` says. */
  readonly has_more: boolean
  /** See `still-workers.ts`. */
  readonly print: string
}

/**
 * What `workers.renew`, `volumeReports.take` and `runs.ofWorker` do in a transaction, as one statement for many workers,
 * each of which is in one report; those without a row were overtaken or removed. A fleet that comes back after a restart
 * sends 10,000 reports at once, and its leases must not end meanwhile.
 */
export function recording(
  reports: readonly BatchedReport[],
  lease: { readonly now: Date; readonly expiresAt: Date },
): Statement {
  return {
    name: 'workerReports.taking',
    text: `WITH p AS MATERIALIZED (
             SELECT * FROM json_to_recordset($1::json) AS p(worker_id uuid, life uuid, seq bigint, vcpus integer,
               memory_mib integer, disk_mib bigint, driver jsonb, storage jsonb, is_shared boolean, resting json)),
           old AS MATERIALIZED (
             SELECT w.id, w.lease_expires_at, w.vcpus, w.memory_mib, w.storage FROM p JOIN workers w ON w.id = p.worker_id
             WHERE w.removed_at IS NULL AND ${IS_LATER({ life: 'p.life', seq: 'p.seq', now: '$3' })}
             ORDER BY w.id FOR NO KEY UPDATE OF w),
           renewed AS (
             UPDATE workers w SET vcpus = p.vcpus, memory_mib = p.memory_mib, disk_mib = p.disk_mib, driver = p.driver,
               lease_expires_at = $2, life = p.life, report_seq = p.seq, storage = p.storage
             FROM p JOIN old ON old.id = p.worker_id WHERE w.id = p.worker_id
             RETURNING w.id, w.draining_since, w.drain_deadline_at, old.lease_expires_at IS NULL OR old.lease_expires_at < $3
               OR old.vcpus < w.vcpus OR old.memory_mib < w.memory_mib OR old.storage IS DISTINCT FROM w.storage AS makes_room),
           emptied AS (
             UPDATE volumes v SET emptied_at = $3 FROM renewed n JOIN p ON p.worker_id = n.id
             WHERE v.status = 'deleting' AND v.emptied_at IS NULL AND (v.home_worker_id = n.id OR v.is_shared AND p.is_shared)
               AND v.used_bytes IS NULL RETURNING n.id)
           SELECT n.id AS worker_id, n.draining_since, n.drain_deadline_at, n.makes_room, ${PRINT('p.resting')} AS print,
             EXISTS (SELECT 1 FROM emptied e WHERE e.id = n.id) AS has_emptied,
             p.is_shared OR EXISTS (SELECT 1 FROM volumes v WHERE v.home_worker_id = n.id AND v.emptied_at IS NULL)
               OR EXISTS (SELECT 1 FROM json_array_elements_text(p.resting) AS t(id) JOIN sandboxes s ON s.id = t.id::uuid
                 WHERE s.visible_until IS NOT NULL) AS has_more,
             coalesce((SELECT json_agg(json_build_object('run_id', r.id, 'sandbox_id', r.sandbox_id, 'status', s.status,
                 'stop_cause', r.stop_cause) ORDER BY r.id) FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
               WHERE r.worker_id = n.id AND r.ended_at IS NULL), '[]') AS open
           FROM renewed n JOIN p ON p.worker_id = n.id JOIN workers w ON w.id = n.id`,
    values: [JSON.stringify(reports.map(asRecord)), lease.expiresAt, lease.now],
  }
}

function asRecord({ worker_id, life, seq, capacity, driver, storage, resting }: BatchedReport): object {
  return { worker_id, life, seq, ...capacity, driver, storage, is_shared: storage.is_shared, resting }
}
