/**
 * The clock by which the instants in the database were written: when the machine of the server was booted, by that
 * clock. If the clock of the machine is set, its boot seems to be at another time.
 */
import type { Queryable } from '../postgres/database.ts'

/** The time at which a machine was booted, by the clock of the server that ran on it. Null: no server has run since. */
export async function findBoot(q: Queryable, bootId: string): Promise<Date | null> {
  const { rows } = await q.query<{ readonly booted_at: Date }>({
    name: 'machineClocks.findBoot',
    text: 'SELECT booted_at FROM machine_clocks WHERE boot_id = $1',
    values: [bootId],
  })
  return rows[0]?.booted_at ?? null
}

/** Records when a machine was booted. Replaces the earlier record of the same boot. */
export async function recordBoot(q: Queryable, bootId: string, bootedAt: Date): Promise<void> {
  await q.query({
    name: 'machineClocks.recordBoot',
    text: `INSERT INTO machine_clocks (boot_id, booted_at) VALUES ($1, $2)
           ON CONFLICT (boot_id) DO UPDATE SET booted_at = excluded.booted_at`,
    values: [bootId, bootedAt],
  })
}

/**
 * Moves the instants of everything that is not over, because the clock was set by `byMs`. Their distance to now stays the
 * same. What is over keeps its instants.
 */
export async function shiftOpenInstants(tx: Queryable, byMs: number): Promise<void> {
  const by = `make_interval(secs => $1::double precision / 1000)`
  const shift = (columns: readonly string[]): string => columns.map((name) => `${name} = t.${name} + ${by}`).join(', ')
  const values = [byMs]
  await tx.query({
    text: `UPDATE sandboxes t SET started_at = t.started_at + ${by} FROM runs r
           WHERE r.ended_at IS NULL AND t.id = r.sandbox_id AND r.started_at IS NOT NULL`,
    values,
  })
  await tx.query({
    text: `UPDATE sandboxes t SET restart_at = t.restart_at + ${by} WHERE t.restart_at IS NOT NULL`,
    values,
  })
  const instants = ['opened_at', 'placed_at', 'waits_since', 'started_at', 'deadline_at', 'stop_requested_at']
  await tx.query({ text: `UPDATE runs t SET ${shift(instants)} WHERE ended_at IS NULL`, values })
  await tx.query({ text: `UPDATE volumes t SET ${shift(['accrued_until'])} WHERE status = 'active'`, values })
  await tx.query({ text: `UPDATE snapshots t SET ${shift(['accrued_until'])} WHERE deleted_at IS NULL`, values })
  await tx.query({
    text: `UPDATE workers t SET ${shift(['lease_expires_at', 'draining_since', 'drain_deadline_at'])} WHERE removed_at IS NULL`,
    values,
  })
  await tx.query({ text: `UPDATE idempotency t SET ${shift(['claimed_until', 'expires_at'])}`, values })
}
