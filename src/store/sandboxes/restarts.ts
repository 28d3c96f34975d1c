/** Sandboxes that their restart policy starts again. `loops/restart-ended.ts` uses these queries. */
import type { SandboxId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

export type DueRestart = { readonly sandbox_id: SandboxId; readonly restart_count: number }

/** At most `limit` sandboxes whose restart is due, those that have waited longest first. */
export async function listDue(q: Queryable, now: Date, limit: number): Promise<readonly DueRestart[]> {
  const { rows } = await q.query<DueRestart>({
    name: 'restarts.listDue',
    text: `SELECT id AS sandbox_id, restart_count FROM sandboxes WHERE restart_at <= $1 AND visible_until IS NULL
           ORDER BY restart_at LIMIT $2`,
    values: [now, limit],
  })
  return rows
}

/** The time at which the next restart is due, or null. */
export async function nextDue(q: Queryable): Promise<Date | null> {
  const { rows } = await q.query<{ readonly at: Date | null }>({
    name: 'restarts.nextDue',
    text: 'SELECT min(restart_at) AS at FROM sandboxes WHERE restart_at IS NOT NULL AND visible_until IS NULL',
  })
  return rows[0]?.at ?? null
}

/** Whether the restart policy will start another run of a sandbox. */
export async function isPending(q: Queryable, id: SandboxId): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'restarts.isPending',
    text: 'SELECT FROM sandboxes WHERE id = $1 AND restart_at IS NOT NULL',
    values: [id],
  })
  return rowCount > 0
}

/**
 * Changes when a sandbox is restarted, and writes why its restart was refused. Does nothing if the restart is no longer
 * due, because a client stopped or started the sandbox. Null: never.
 */
export async function postpone(
  q: Queryable,
  { sandbox_id, now, until, message }: { sandbox_id: SandboxId; now: Date; until: Date | null; message: string },
): Promise<void> {
  await q.query({
    name: 'restarts.postpone',
    text: `UPDATE sandboxes SET restart_at = $3, last_failure_message = $4 WHERE id = $1 AND restart_at <= $2`,
    values: [sandbox_id, now, until, message],
  })
}
