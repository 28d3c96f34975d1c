/** The numbers of the whole installation that metrics show. */
import type { SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import type { Queryable } from '../postgres/database.ts'
import { DISK_CAPACITY, DISK_SUMS, DISKS } from './disk-use.ts'

/** A worker that was not removed, with what it offers and what its runs and disks use. */
export type WorkerNumbers = {
  readonly name: string
  /** Null before its first report. */
  readonly driver: string | null
  readonly vcpus: number
  readonly memory_mib: number
  /** Null: not limited. */
  readonly disk_mib: number | null
  readonly used_vcpus: number
  readonly used_memory_mib: number
  readonly used_disk_mib: number
  readonly runs: number
  readonly lease_expires_at: Date | null
  readonly is_draining: boolean
  /** The file system with its data folder. Null: it is not watched. */
  readonly disk: WorkerDisk | null
}

/** Every worker that was not removed. */
export async function listWorkers(q: Queryable): Promise<readonly WorkerNumbers[]> {
  const { rows } = await q.query<WorkerNumbers>({
    name: 'fleetNumbers.listWorkers',
    text: `SELECT w.name, w.driver ->> 'name' AS driver, w.vcpus, w.memory_mib, c.disk_mib,
             coalesce(u.vcpus, 0)::integer AS used_vcpus, coalesce(u.memory_mib, 0)::float8 AS used_memory_mib,
             (coalesce(d.sized_disks_mib, 0) + coalesce(d.default_disks, 0) * c.default_disk_mib)::float8 AS used_disk_mib,
             coalesce(u.runs, 0)::integer AS runs, w.lease_expires_at, w.draining_since IS NOT NULL AS is_draining, w.disk
           FROM workers w LEFT JOIN (
             SELECT worker_id, count(*) AS runs, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib FROM runs
             WHERE ended_at IS NULL AND worker_id IS NOT NULL GROUP BY worker_id) u ON u.worker_id = w.id
           LEFT JOIN (SELECT worker_id, ${DISK_SUMS} FROM (${DISKS}) a GROUP BY worker_id) d ON d.worker_id = w.id
           CROSS JOIN LATERAL (SELECT ${DISK_CAPACITY}) c
           WHERE w.removed_at IS NULL ORDER BY w.id`,
  })
  return rows
}

/** The reasons for which a run waits for a worker. */
export const WAITING_REASONS = ['scheduling', 'insufficient_capacity', 'home_worker_unavailable'] as const

/** The runs that wait for one reason, and when the oldest of them was requested. */
export type WaitingNumbers = {
  readonly reason: (typeof WAITING_REASONS)[number]
  readonly count: number
  readonly oldest_at: Date
}

/**
 * The runs without a worker. `scheduling`: no placement pass has tried them. `home_worker_unavailable`: their disk is on
 * a worker that gets no new runs at `now`. `insufficient_capacity`: all others.
 */
export async function countWaiting(q: Queryable, now: Date): Promise<readonly WaitingNumbers[]> {
  const { rows } = await q.query<WaitingNumbers>({
    name: 'fleetNumbers.countWaiting',
    text: `SELECT CASE WHEN r.waits_since IS NULL THEN 'scheduling'
               WHEN s.home_worker_id IS NOT NULL AND w.id IS NULL THEN 'home_worker_unavailable'
               ELSE 'insufficient_capacity' END AS reason, count(*)::integer AS count, min(r.opened_at) AS oldest_at
           FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id
             LEFT JOIN workers w ON w.id = s.home_worker_id AND w.lease_expires_at > $1
               AND w.draining_since IS NULL AND w.removed_at IS NULL
           WHERE r.ended_at IS NULL AND r.worker_id IS NULL GROUP BY 1`,
    values: [now],
  })
  return rows
}

/** The number of open runs by the status of their sandbox, which their times tell without reading sandboxes. */
export async function countOpenRuns(
  q: Queryable,
): Promise<readonly { readonly status: SandboxStatus; readonly count: number }[]> {
  const { rows } = await q.query<{ readonly status: SandboxStatus; readonly count: number }>({
    name: 'fleetNumbers.countOpenRuns',
    text: `SELECT CASE WHEN stop_requested_at IS NOT NULL THEN 'stopping' WHEN started_at IS NULL THEN 'starting'
               ELSE 'running' END AS status, count(*)::integer AS count
           FROM runs WHERE ended_at IS NULL GROUP BY 1`,
  })
  return rows
}

/** The volumes of one status, and the bytes that their workers reported. */
export type VolumeNumbers = {
  readonly status: 'active' | 'deleting'
  readonly count: number
  readonly used_bytes: number
}

/** The number of volumes and what they use, by status. */
export async function countVolumes(q: Queryable): Promise<readonly VolumeNumbers[]> {
  const { rows } = await q.query<VolumeNumbers>({
    name: 'fleetNumbers.countVolumes',
    text: `SELECT status, count(*)::integer AS count, coalesce(sum(used_bytes), 0)::float8 AS used_bytes
           FROM volumes GROUP BY status`,
  })
  return rows
}

/** The webhooks, and the deliveries that wait to be sent or tried again. */
export type WebhookNumbers = { readonly active: number; readonly paused: number; readonly waiting: number }

/** The number of webhooks, and of what waits for those that are not paused. */
export async function countWebhooks(q: Queryable): Promise<WebhookNumbers> {
  const { rows } = await q.query<WebhookNumbers>({
    name: 'fleetNumbers.countWebhooks',
    text: `SELECT count(*) FILTER (WHERE w.paused_at IS NULL)::integer AS active, count(w.paused_at)::integer AS paused,
             coalesce(sum((SELECT count(*) FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.status = 'waiting'))
               FILTER (WHERE w.paused_at IS NULL), 0)::float8 AS waiting
           FROM webhooks w`,
  })
  return rows[0] ?? { active: 0, paused: 0, waiting: 0 }
}
