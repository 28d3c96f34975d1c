import type { WorkerId } from '../domain/ids.ts'
import type { Database } from './database.ts'
import type { WorkerRun } from './runs.ts'
import type { Renewal, WorkerReport } from './workers.ts'

/** What became of a report, with the open runs that it is to be compared with. */
export type TakenReport = Renewal & {
  /** Whether a volume that is to be deleted was never held there, as far as the worker has told. */
  readonly has_emptied: boolean
  readonly open: readonly WorkerRun[]
}

/**
 * What `workers.renew`, `volumeReports.take` and `runs.ofWorker` do in a transaction, as one statement, for a report that
 * says nothing new of volumes: it is on its way once in place of five times, and a fleet that comes back after a restart
 * sends 10,000 of them.
 */
export async function takeWithoutVolumes(
  db: Pick<Database, 'commit'>,
  id: WorkerId,
  report: WorkerReport,
): Promise<TakenReport | null> {
  const { capacity, driver, storage, life, seq, now, leaseExpiresAt } = report
  const { rows } = await db.commit<TakenReport>('system', {
    name: 'workerReports.takeWithoutVolumes',
    text: `WITH old AS (SELECT lease_expires_at, vcpus, memory_mib, storage FROM workers WHERE id = $1),
           renewed AS (
             UPDATE workers w SET vcpus = $2, memory_mib = $3, disk_mib = $4, driver = $5, lease_expires_at = $6,
               life = $8, report_seq = $9, storage = $10
             FROM old WHERE w.id = $1 AND w.removed_at IS NULL AND (w.life IS DISTINCT FROM $8 OR w.report_seq < $9)
             RETURNING w.draining_since, w.drain_deadline_at, old.lease_expires_at IS NULL OR old.lease_expires_at < $7
               OR old.vcpus < w.vcpus OR old.memory_mib < w.memory_mib OR old.storage IS DISTINCT FROM w.storage AS makes_room),
           emptied AS (
             UPDATE volumes v SET emptied_at = $7 FROM renewed
             WHERE v.status = 'deleting' AND v.emptied_at IS NULL AND (v.home_worker_id = $1 OR v.is_shared AND $11)
               AND v.used_bytes IS NULL RETURNING v.id)
           SELECT n.draining_since, n.drain_deadline_at, n.makes_room, EXISTS (SELECT 1 FROM emptied) AS has_emptied,
             coalesce((SELECT json_agg(json_build_object('run_id', r.id, 'sandbox_id', r.sandbox_id, 'status', s.status,
                 'stop_cause', r.stop_cause) ORDER BY r.id) FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
               WHERE r.worker_id = $1 AND r.ended_at IS NULL), '[]') AS open
           FROM renewed n`,
    values: [
      id,
      capacity.vcpus,
      capacity.memory_mib,
      capacity.disk_mib,
      JSON.stringify(driver),
      leaseExpiresAt,
      now,
      life,
      seq,
      JSON.stringify(storage),
      storage.is_shared,
    ],
  })
  return rows[0] ?? null
}
