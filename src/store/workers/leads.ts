/**
 * Who does what only one process may do at a time. The holder counts `beats` up; who wants the lead takes it from a
 * holder that stands still, by comparing both counts, and gets the next `epoch`. No clock of one machine is compared
 * with that of another.
 */
import type { Queryable } from '../postgres/database.ts'

/** A lead as it stands; `holder` is null once it was given up. */
export type LeadRow = { readonly holder: string | null; readonly epoch: number; readonly beats: number }

/** The right of one process, until another one takes the lead. */
export type LeadTerm = { readonly name: string; readonly holder: string; readonly epoch: number }

/** The lead of this name, or null while nobody ever had it. */
export async function find(q: Queryable, name: string): Promise<LeadRow | null> {
  const { rows } = await q.query<LeadRow>({
    name: 'leads.look',
    text: 'SELECT holder, epoch, beats FROM leads WHERE name = $1',
    values: [name],
  })
  return rows[0] ?? null
}

/**
 * Takes the lead if it is still as `seen`; answers the new epoch, or null when somebody was faster. It waits for the
 * transactions that `holds` has let through.
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

/** Says that the holder lives; false when the lead is no longer its own. */
export async function renew(q: Queryable, { name, holder, epoch }: LeadTerm): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'leads.beat',
    text: 'UPDATE leads SET beats = beats + 1 WHERE name = $1 AND holder = $2 AND epoch = $3',
    values: [name, holder, epoch],
  })
  return rowCount === 1
}

/**
 * Whether the lead is still the holder's, and stays so until the transaction ends. The row is locked as a foreign key
 * locks it: a beat goes past, the next holder waits.
 */
export async function lockIfHeld(tx: Queryable, { name, holder, epoch }: LeadTerm): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'leads.holds',
    text: 'SELECT FROM leads WHERE name = $1 AND holder = $2 AND epoch = $3 FOR KEY SHARE',
    values: [name, holder, epoch],
  })
  return rowCount === 1
}

/** Gives the lead up, so that the next one need not wait for the lease. May be repeated. */
export async function release(q: Queryable, { name, holder, epoch }: LeadTerm): Promise<void> {
  await q.query({
    text: 'UPDATE leads SET holder = NULL, epoch = epoch + 1 WHERE name = $1 AND holder = $2 AND epoch = $3',
    values: [name, holder, epoch],
  })
}
