/** Whether the disks of workers are short, as audit events tell it. */
import type { OrgId, WorkerId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** Stores whether a worker's disk is short. Returns the worker's name, or null if that was stored already. */
export async function setShort(tx: Queryable, worker: WorkerId, isShort: boolean): Promise<string | null> {
  const { rows } = await tx.query<{ readonly name: string }>({
    name: 'workerDisks.setShort',
    text: `UPDATE workers SET is_disk_short = $2 WHERE id = $1 AND is_disk_short <> $2 RETURNING name`,
    values: [worker, isShort],
  })
  return rows[0]?.name ?? null
}

/** The organizations that have a sandbox on a worker, running or not. */
export async function orgsOn(q: Queryable, worker: WorkerId): Promise<readonly OrgId[]> {
  const { rows } = await q.query<{ readonly org_id: OrgId }>({
    name: 'workerDisks.orgsOn',
    text: `SELECT org_id FROM sandboxes WHERE home_worker_id = $1 AND visible_until IS NULL
           UNION SELECT org_id FROM runs WHERE worker_id = $1 AND ended_at IS NULL`,
    values: [worker],
  })
  return rows.map(({ org_id }) => org_id)
}
