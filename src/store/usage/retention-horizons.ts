/**
 * How far runs and usage are deleted. A loop raises a horizon before it deletes anything. Read the rows first and the
 * horizons afterwards: rows that a reader missed are then before a horizon that it sees.
 */
import type { Horizons } from '../../domain/usage/kept-range.ts'
import type { Queryable } from '../postgres/database.ts'

/**
 * Raises a horizon. It never goes back, because deleted rows don't return. Nothing is before the first organization, so
 * a horizon before it would refuse reports for no reason.
 */
export async function raise(q: Queryable, kind: keyof Horizons, before: Date): Promise<void> {
  await q.query({
    name: 'retentionHorizons.raise',
    text: `INSERT INTO retention_horizons AS h (kind, before)
           SELECT $1, $2::timestamptz WHERE EXISTS (SELECT FROM orgs WHERE created_at < $2)
           ON CONFLICT (kind) DO UPDATE SET before = excluded.before WHERE h.before < excluded.before`,
    values: [kind, before],
  })
}

/** The time that retention has reached. Null: it has never run. */
export async function findClock(q: Queryable): Promise<Date | null> {
  const { rows } = await q.query<{ readonly at: Date }>({
    name: 'retentionHorizons.findClock',
    text: `SELECT before AS at FROM retention_horizons WHERE kind = 'clock'`,
  })
  return rows[0]?.at ?? null
}

/** Sets the time that retention has reached. It may go back, because a clock may be corrected. */
export async function setClock(q: Queryable, at: Date): Promise<void> {
  await q.query({
    name: 'retentionHorizons.setClock',
    text: `INSERT INTO retention_horizons (kind, before) VALUES ('clock', $1)
           ON CONFLICT (kind) DO UPDATE SET before = excluded.before`,
    values: [at],
  })
}

/** The horizons. A horizon is null if nothing of its kind was ever deleted. */
export async function find(q: Queryable): Promise<Horizons> {
  const { rows } = await q.query<{ readonly kind: keyof Horizons; readonly before: Date }>({
    name: 'retentionHorizons.find',
    text: 'SELECT kind, before FROM retention_horizons',
  })
  const of = (kind: keyof Horizons): Date | null => rows.find((row) => row.kind === kind)?.before ?? null
  return { runs: of('runs'), usage: of('usage') }
}
