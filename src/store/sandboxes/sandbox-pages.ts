/**
 * Pages of sandboxes. A page reads one range of one index, whatever the number of sandboxes and of matches. The
 * exception is a filter of three or more labels, if many sandboxes have two of the labels but few have all. One request
 * then checks only a limited number of the sandboxes with two of the labels.
 */
import { asId, type OrgId, type SandboxId } from '../../domain/ids.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../postgres/database.ts'
import { SANDBOX_COLUMNS } from './sandboxes.ts'

/** The filter of a page of sandboxes. A sandbox must have all of the labels. `before` is exclusive. */
export type SandboxFilter = {
  readonly labels: readonly (readonly [key: string, value: string])[]
  readonly before: SandboxId | null
}

/**
 * The rows of a page, newest first. If the request reached its limit of checked sandboxes or of bytes, `nextBefore` is
 * where the next page begins. Otherwise it is null.
 */
export type SandboxRows = { readonly rows: readonly Sandbox[]; readonly nextBefore: SandboxId | null }

/**
 * A page ends with the sandbox whose specification brings the page to this size. A hundred ordinary sandboxes have a
 * fifth of it. Without a limit, one page of specifications of 4 MiB each took 400 MiB and the server's time.
 */
const PAGE_BYTES = 1_048_576

/**
 * The first `count` sandboxes of an organization that match the filter. If the request reaches its limit of checked
 * sandboxes or of bytes, the result has fewer rows and a `nextBefore`; more matches may follow.
 */
export async function page(
  q: Queryable,
  org: OrgId,
  { labels, before }: SandboxFilter,
  count: number,
): Promise<SandboxRows> {
  const from = before ?? asId<SandboxId>('ffffffff-ffff-ffff-ffff-ffffffffffff')
  const values = [org, from, count]
  const [first] = labels
  if (labels.length > 1) return pageOfPair(q, org, { labels, before: from }, count)
  const statement = first === undefined ? { ...OF_ALL, values } : { ...OF_LABEL, values: [...values, ...first] }
  const { rows } = await q.query<Sandbox>(statement)
  return { rows, nextBefore: isFull(rows) ? (rows.at(-1)?.id ?? null) : null }
}

function isFull(rows: readonly Sandbox[]): boolean {
  return rows.reduce((sum, { spec_json }) => sum + Buffer.byteLength(spec_json), 0) >= PAGE_BYTES
}

/**
 * How many sandboxes with the rarest label pair are checked for the other labels: at first, and once more if too few of
 * them match. Both checks together take about 10 ms.
 */
const STRETCHES = [128, 2_048] as const

async function pageOfPair(
  q: Queryable,
  org: OrgId,
  { labels, before }: SandboxFilter,
  count: number,
): Promise<SandboxRows> {
  const rarest = await q.query<{ readonly of_both: Buffer; readonly of_one: Buffer; readonly keys: readonly string[] }>(
    {
      ...RAREST,
      values: [org, ...columnsOf(labels)],
    },
  )
  const pair = rarest.rows[0]
  if (pair === undefined) throw new Error('two labels have no pair')
  const isOfPair = ([key]: SandboxFilter['labels'][number]): boolean => pair.keys.includes(key)
  // Nearly all sandboxes that are checked have the labels of the pair, so these are looked up last.
  const all = columnsOf([...labels.filter((label) => !isOfPair(label)), ...labels.filter(isOfPair)])
  const rows: Sandbox[] = []
  let from = before
  for (const stretch of STRETCHES) {
    const values = [org, from, count - rows.length, ...all, pair.of_both, pair.of_one, stretch]
    const found = await q.query<Walked>({ ...OF_PAIR, values })
    for (const { walked: _, last_walked, ...row } of found.rows) {
      from = last_walked
      if (row.id !== null) rows.push(row)
    }
    if (isFull(rows)) return { rows, nextBefore: rows.at(-1)?.id ?? null }
    if (rows.length >= count || (found.rows[0]?.walked ?? 0) < stretch) return { rows, nextBefore: null }
  }
  return { rows, nextBefore: from }
}

function columnsOf(labels: SandboxFilter['labels']): readonly (readonly string[])[] {
  return [labels.map(([key]) => key), labels.map(([, value]) => value)]
}

type Walked = (Sandbox | { readonly id: null }) & { readonly walked: number; readonly last_walked: SandboxId | null }

/** SQL: of the sandboxes `s` of a FROM clause, newest first, those of one page by its limit of bytes. */
function withinPage(from: string, limit = ''): string {
  return `SELECT ${SANDBOX_COLUMNS} FROM (
      SELECT s.*, sum(coalesce(s.projection_bytes, octet_length(s.spec_projection::text)))
        OVER (ORDER BY s.id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM ${from} ORDER BY s.id DESC ${limit}) r
    WHERE coalesce(bytes_before, 0) < ${String(PAGE_BYTES)} ORDER BY id DESC`
}

const OF_ALL = {
  name: 'sandboxes.pageOfAll',
  text: withinPage('sandboxes s WHERE org_id = $1 AND visible_until IS NULL AND id < $2', 'LIMIT $3'),
}

const OF_LABEL = {
  name: 'sandboxes.pageOfLabel',
  text: withinPage(`(
      SELECT l.sandbox_id AS labelled_id FROM sandbox_labels l
      WHERE l.org_id = $1 AND l.key = $4 AND l.value = $5 AND l.sandbox_id < $2
      ORDER BY l.sandbox_id DESC LIMIT $3) p
    JOIN sandboxes s ON s.id = p.labelled_id WHERE s.visible_until IS NULL`),
}

/** The rarest label and pair are found by counting rows. For each label or pair, at most this many rows are counted. */
const COUNT_LIMIT = 200

/**
 * SQL: the rarest of several labels, and the rarest pair that contains it. Two labels form only one pair, so nothing is
 * counted for them.
 */
const RAREST = {
  name: 'sandboxes.rarestPair',
  text: `WITH w AS MATERIALIZED (SELECT key COLLATE "C", value COLLATE "C" FROM unnest($2::text[], $3::text[]) AS w(key, value)),
         a AS MATERIALIZED (
           SELECT key, value FROM w ORDER BY CASE WHEN cardinality($2) > 2 THEN
             (SELECT count(*) FROM (SELECT FROM sandbox_labels l
               WHERE l.org_id = $1 AND l.key = w.key AND l.value = w.value LIMIT ${String(COUNT_LIMIT)}) c) END, key LIMIT 1),
         p AS MATERIALIZED (
           SELECT CASE WHEN a.key < w.key THEN sandyard_label_pair(a.key, a.value, w.key, w.value)
             ELSE sandyard_label_pair(w.key, w.value, a.key, a.value) END AS of_both,
             sandyard_label_pair(a.key, a.value, '', '') AS of_one, ARRAY[a.key, w.key]::text[] AS keys
           FROM a JOIN w ON w.key <> a.key)
         SELECT of_both, of_one, keys FROM p ORDER BY CASE WHEN cardinality($2) > 2 THEN
           (SELECT count(*) FROM (SELECT FROM sandbox_label_pairs s
             WHERE s.org_id = $1 AND s.pair = p.of_both LIMIT ${String(COUNT_LIMIT)}) c) END LIMIT 1`,
}

/**
 * SQL: the next sandboxes that may have all labels. They have the label pair, or they have one of its labels and too
 * many labels to be stored with their pairs. A pair is stored as a hash, so the query compares the labels themselves as
 * well. Each row contains the number of checked sandboxes and the last of them. If none matched, there is one row
 * without a sandbox.
 */
const OF_PAIR = {
  name: 'sandboxes.pageOfPair',
  text: `WITH c AS MATERIALIZED (
           (${walk('$6')}) UNION ALL (${walk('$7')}) ORDER BY labelled_id DESC LIMIT $8),
         m AS (${withinPage(`(
             SELECT labelled_id FROM c WHERE NOT EXISTS (
               SELECT FROM unnest($4::text[], $5::text[]) AS w(key, value) WHERE NOT EXISTS (
                 SELECT FROM sandbox_labels l
                 WHERE l.org_id = $1 AND l.key = w.key AND l.value = w.value AND l.sandbox_id = c.labelled_id))
             ORDER BY labelled_id DESC LIMIT $3) p
           JOIN sandboxes s ON s.id = p.labelled_id WHERE s.visible_until IS NULL`)})
         SELECT e.walked, e.last_walked, m.* FROM (
           SELECT count(*) AS walked, (SELECT labelled_id FROM c ORDER BY labelled_id LIMIT 1) AS last_walked FROM c) e
         LEFT JOIN m ON true ORDER BY m.id DESC`,
}

function walk(pair: string): string {
  return `SELECT p.sandbox_id AS labelled_id FROM sandbox_label_pairs p
    WHERE p.org_id = $1 AND p.pair = ${pair} AND p.sandbox_id < $2 ORDER BY p.sandbox_id DESC LIMIT $8`
}
