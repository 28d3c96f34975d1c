/**
 * Leads: leases that let only one process at a time do a job. The holder increments `beats`. Another process that sees
 * `beats` and `epoch` unchanged for long enough acquires the lead and gets the next `epoch`. Clocks of different
 * machines are never compared.
 */
import type { Queryable } from '../postgres/database.ts'

/** A stored lead. `holder` is null once the lead was released. */
export type LeadRow = { readonly holder: string | null; readonly epoch: number; readonly beats: number }

/** The term of one leader. It ends when another process acquires the lead. */
export type LeadTerm = { readonly name: string; readonly holder: string; readonly epoch: number }

/** The lead with this name, or null if no process has ever held it. */
export async function find(q: Queryable, name: string): Promise<LeadRow | null> {
  const { rows } = await q.query<LeadRow>({
    name: 'leads.find',
    text: 'SELECT holder, epoch, beats FROM leads WHERE name = $1',
    values: [name],
  })
  return rows[0] ?? null
}

/**
 * Acquires the lead if it is unchanged since `seen`. Returns the new epoch, or null when another process was faster.
 * Waits for transactions that locked the lead with `lockIfHeld`.
 */
export async function acquire(
  q: Queryable,
  { name, holder, seen }: { readonly name: string; readonly holder: string; readonly seen: LeadRow | null },
): Promise<number | null> {
  const statement =
    seen === null
      ? {
          text: `INSERT INTO leads (name, holder, epoch, beats) VALUES ($1, $2, 1, 0)
                 ON CONFLICT (name) DO NOTHING RETURNING epoch`,
          values: [name, holder],
        }
      : {
          text: `UPDATE leads SET holder = $2, epoch = epoch + 1, beats = beats + 1
                 WHERE name = $1 AND epoch = $3 AND beats = $4 RETURNING epoch`,
          values: [name, holder, seen.epoch, seen.beats],
        }
  const { rows } = await q.query<{ readonly epoch: number }>(statement)
  return rows[0]?.epoch ?? null
}

/** Renews the lead. Returns false when another process holds it. */
export async function renew(q: Queryable, { name, holder, epoch }: LeadTerm): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'leads.renew',
    text: 'UPDATE leads SET beats = beats + 1 WHERE name = $1 AND holder = $2 AND epoch = $3',
    values: [name, holder, epoch],
  })
  return rowCount === 1
}

/**
 * Returns whether this term still lasts. If so, no other process can acquire the lead until the transaction ends. The
 * row lock (FOR KEY SHARE) blocks `acquire`, which changes the unique key (name, epoch), but not `renew`.
 */
export async function lockIfHeld(tx: Queryable, { name, holder, epoch }: LeadTerm): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'leads.lockIfHeld',
    isRead: true,
    text: 'SELECT FROM leads WHERE name = $1 AND holder = $2 AND epoch = $3 FOR KEY SHARE',
    values: [name, holder, epoch],
  })
  return rowCount === 1
}

/** Releases the lead. The next holder then need not wait for the lease to expire. May be repeated. */
export async function release(q: Queryable, { name, holder, epoch }: LeadTerm): Promise<void> {
  await q.query({
    text: 'UPDATE leads SET holder = NULL, epoch = epoch + 1 WHERE name = $1 AND holder = $2 AND epoch = $3',
    values: [name, holder, epoch],
  })
}
