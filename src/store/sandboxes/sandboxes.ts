/**
 * Sandboxes as clients read them. While `visible_until` is null, a sandbox is visible to clients. Once it is set, the
 * sandbox's name and slug are free, and clients can read the sandbox by id and name only until that time. Only
 * `sandbox-states.ts` writes the status.
 */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import { SANDBOX_STATUSES } from '../../domain/sandboxes/lifecycle.ts'
import type { Sandbox, SandboxKey, SandboxSummary } from '../../domain/sandboxes/sandbox.ts'
import * as arrays from '../postgres/binary-array.ts'
import { idRows } from '../postgres/column-list.ts'
import type { Queryable } from '../postgres/database.ts'

/** The columns that the type `SandboxSummary` contains. */
const SUMMARY_COLUMNS = `id, org_id, name, slug, status, ephemeral, created_at, last_failure_message,
  started_at, status_reason, stopped_at, run_id, isolation`

/** The columns that the type `Sandbox` contains. */
export const SANDBOX_COLUMNS = `${SUMMARY_COLUMNS}, spec_projection::text AS spec_json`

/** SQL: what has the members `image`, `network.ports` and `mounts` of the specification of a sandbox `s`. */
export const SPEC_PARTS = 'coalesce(s.spec_parts, s.spec)'

/** Sandboxes of an organization that are read at `now`. */
type SandboxLookup = { readonly org_id: OrgId; readonly ids: readonly SandboxId[]; readonly now: Date }

/** SQL: those of the given sandboxes that belong to an organization and can be read at a time, in no particular order. */
function visible(columns: string): string {
  return `SELECT s.* FROM ${idRows('$2', 'w')}, LATERAL (
             SELECT ${columns} FROM sandboxes
             WHERE id = w.id AND org_id = $1 AND (visible_until IS NULL OR visible_until > $3) LIMIT 1) s`
}

/** A sandbox without its specification, and how many bytes that has. Null: a process of an earlier version wrote it. */
export type FoundSummary = SandboxSummary & { readonly spec_bytes: number | null }

const FOUND_SUMMARY_COLUMNS = `${SUMMARY_COLUMNS}, spec_bytes`

/** Sandboxes without their specifications. */
export async function findSummaries(
  q: Queryable,
  { org_id, ids, now }: SandboxLookup,
): Promise<readonly FoundSummary[]> {
  const text = visible(FOUND_SUMMARY_COLUMNS)
  const values = [org_id, arrays.uuids(ids), now]
  return (await q.query<FoundSummary>({ name: 'sandboxes.findSummaries', text, values })).rows
}

/** A sandbox that was found. `spec_json` is null if it has more bytes than were asked for. */
export type FoundSandbox = SandboxSummary & { readonly spec_json: string | null }

/** SQL: the columns of `FoundSandbox`, with the largest size as a parameter. */
function foundColumns(maxBytes: string): string {
  return `${SUMMARY_COLUMNS}, CASE WHEN coalesce(projection_bytes, octet_length(spec_projection::text)) <= ${maxBytes}
    THEN spec_projection::text END AS spec_json`
}

/** Sandboxes with their specifications of at most `maxBytes`. */
export async function findMany(
  q: Queryable,
  { org_id, ids, now }: SandboxLookup,
  maxBytes: number,
): Promise<readonly FoundSandbox[]> {
  const text = visible(foundColumns('$4'))
  const values = [org_id, arrays.uuids(ids), now, maxBytes]
  return (await q.query<FoundSandbox>({ name: 'sandboxes.findMany', text, values })).rows
}

/** Whether an organization has or had a sandbox with this id. */
export async function existed(q: Queryable, org: OrgId, id: SandboxId): Promise<boolean> {
  const { rowCount } = await q.query({
    name: 'sandboxes.existed',
    text: `SELECT 1 AS made FROM sandboxes WHERE org_id = $1 AND id = $2
           UNION ALL SELECT 1 FROM pruned_sandboxes WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rowCount > 0
}

/**
 * Locks a sandbox until the transaction ends, and returns its locked state. Null if there is no such sandbox, or if it
 * is hidden from clients.
 */
export async function lock(tx: Queryable, org: OrgId, id: SandboxId): Promise<Sandbox | null> {
  const { rows } = await tx.query<Sandbox>({
    name: 'sandboxes.lock',
    text: `SELECT ${SANDBOX_COLUMNS} FROM sandboxes WHERE org_id = $1 AND id = $2 AND visible_until IS NULL FOR UPDATE`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** The sandbox with this id, with all of its specification, if it belongs to the organization and can be read at `now`. Otherwise null. */
export async function findWhole(q: Queryable, { org_id, id }: SandboxKey, now: Date): Promise<Sandbox | null> {
  const { rows } = await q.query<Sandbox>({
    name: 'sandboxes.findWhole',
    text: `SELECT ${SANDBOX_COLUMNS} FROM sandboxes
           WHERE id = $2 AND org_id = $1 AND (visible_until IS NULL OR visible_until > $3)`,
    values: [org_id, id, now],
  })
  return rows[0] ?? null
}

/** A name in an organization, which is looked up at `now`. */
type NameLookup = { readonly org_id: OrgId; readonly name: string; readonly now: Date }

/**
 * The sandbox with this name. If there is none, the last sandbox that had the name and can still be read. Otherwise
 * null.
 */
export async function findByName(
  q: Queryable,
  { org_id, name, now }: NameLookup,
  maxBytes: number,
): Promise<FoundSandbox | null> {
  const text = named(foundColumns('$4'))
  const values = [org_id, name, now, maxBytes]
  const { rows } = await q.query<FoundSandbox & Ranked>({ name: 'sandboxes.findByName', text, values })
  return rows[0] === undefined ? null : withoutRank(rows[0])
}

/** The same without the specification. */
export async function findSummaryByName(q: Queryable, { org_id, name, now }: NameLookup): Promise<FoundSummary | null> {
  const text = named(FOUND_SUMMARY_COLUMNS)
  const values = [org_id, name, now]
  const { rows } = await q.query<FoundSummary & Ranked>({ name: 'sandboxes.findSummaryByName', text, values })
  return rows[0] === undefined ? null : withoutRank(rows[0])
}

type Ranked = { readonly rank?: number }

/** SQL: the sandbox with a name, or the last that had it and can be read. */
function named(columns: string): string {
  return `(SELECT ${columns}, 0 AS rank FROM sandboxes WHERE org_id = $1 AND name = $2 AND visible_until IS NULL)
           UNION ALL
           (SELECT ${columns}, 1 FROM sandboxes WHERE org_id = $1 AND name = $2 AND visible_until > $3
            ORDER BY id DESC LIMIT 1)
           ORDER BY rank LIMIT 1`
}

function withoutRank<Row extends Ranked>(row: Row): Omit<Row, 'rank'> {
  const { rank: _, ...sandbox } = row
  return sandbox
}

/** Whether a name is taken in an organization now. */
export async function isNameTaken(q: Queryable, org: OrgId, name: string): Promise<boolean> {
  const { rows } = await q.query({
    name: 'sandboxes.isNameTaken',
    text: `SELECT 1 AS taken FROM sandboxes WHERE org_id = $1 AND name = $2 AND visible_until IS NULL`,
    values: [org, name],
  })
  return rows.length > 0
}

/** Whether a slug is taken now, in any organization. */
export async function isSlugTaken(q: Queryable, slug: string): Promise<boolean> {
  const { rows } = await q.query({
    name: 'sandboxes.isSlugTaken',
    text: 'SELECT 1 AS taken FROM sandboxes WHERE slug = $1 AND visible_until IS NULL',
    values: [slug],
  })
  return rows.length > 0
}

/** The name and the slug of a sandbox. */
type Names = Pick<Sandbox, 'name' | 'slug'>

/**
 * Changes a sandbox's name or slug. Null keeps the old value. Returns what they were and what they are, or null if the sandbox doesn't
 * exist. Throws if the name or slug is taken.
 */
export async function rename(
  tx: Queryable,
  { org_id, id }: SandboxKey,
  to: { readonly [Member in keyof Names]: Names[Member] | null },
): Promise<{ readonly from: Names; readonly to: Names } | null> {
  const locked = await tx.query<Names>({
    name: 'sandboxes.lockNames',
    text: `SELECT name, slug FROM sandboxes WHERE org_id = $1 AND id = $2 AND visible_until IS NULL FOR NO KEY UPDATE`,
    values: [org_id, id],
  })
  const [from] = locked.rows
  if (from === undefined) return null
  const names = { name: to.name ?? from.name, slug: to.slug ?? from.slug }
  await tx.query({
    name: 'sandboxes.rename',
    text: `UPDATE sandboxes SET name = $3, slug = $4 WHERE org_id = $1 AND id = $2`,
    values: [org_id, id, names.name, names.slug],
  })
  return { from, to: names }
}

/**
 * A sandbox that was just hidden with its last names, and the worker that stores its writable layer. The worker is null if no run was ever
 * placed.
 */
export type HiddenSandbox = Names & { readonly id: SandboxId; readonly home_worker_id: WorkerId | null }

/**
 * Hides sandboxes from clients from `visibleUntil` on. Their names and slugs are free at once, and the values of their
 * secrets are deleted. Returns those that no
 * earlier call has hidden. Rows are locked in the order of their ids, as in every transition.
 */
export async function hide(
  q: Queryable,
  ids: readonly SandboxId[],
  visibleUntil: Date,
): Promise<readonly HiddenSandbox[]> {
  const { rows } = await q.query<HiddenSandbox>({
    name: 'sandboxes.hide',
    text: `WITH w AS MATERIALIZED (
             SELECT s.id FROM (SELECT id FROM unnest($1::uuid[]) AS u(id) ORDER BY id LIMIT $3::bigint) u,
               LATERAL (SELECT id FROM sandboxes WHERE id = u.id FOR NO KEY UPDATE) s),
           h AS (UPDATE sandboxes s SET visible_until = $2, secrets_sealed = NULL, tls_key_sealed = NULL FROM w WHERE s.id = w.id AND s.visible_until IS NULL
             RETURNING s.id, s.name, s.slug, s.home_worker_id),
           l AS (DELETE FROM sandbox_labels WHERE sandbox_id IN (SELECT id FROM h))
           SELECT id, name, slug, home_worker_id FROM h`,
    values: [arrays.uuids(ids), visibleUntil, ids.length],
  })
  return rows
}

/** Ends the time until which clients can still read sandboxes that `hide` has hidden already. */
export async function hideNow(q: Queryable, ids: readonly SandboxId[], now: Date): Promise<void> {
  await q.query({
    name: 'sandboxes.hideNow',
    text: `UPDATE sandboxes SET visible_until = $2 WHERE id = ANY($1::uuid[]) AND visible_until > $2`,
    values: [arrays.uuids(ids), now],
  })
}

/** Shows the ports that a worker opened on its machine for the open run, one for each of the specification's ports and in their order. */
export async function showPorts(q: Queryable, id: SandboxId, hostPorts: readonly number[]): Promise<void> {
  await q.query({
    name: 'sandboxes.showPorts',
    text: `WITH shown AS (
             SELECT jsonb_set(s.spec_projection::jsonb, '{network,ports}', jsonb_agg(
               jsonb_set(p.port, '{host_port}', to_jsonb(h.host_port)) ORDER BY p.at))::text AS text
             FROM sandboxes s, jsonb_array_elements(s.spec_projection::jsonb #> '{network,ports}') WITH ORDINALITY AS p(port, at)
               JOIN unnest($2::integer[]) WITH ORDINALITY AS h(host_port, at) USING (at)
             WHERE s.id = $1 GROUP BY s.spec_projection::jsonb HAVING count(*) = jsonb_array_length(s.spec_projection::jsonb #> '{network,ports}')),
 of_run AS (
             UPDATE runs r SET ports = shown.text::jsonb #> '{network,ports}' FROM shown WHERE r.sandbox_id = $1 AND r.ended_at IS NULL)
           UPDATE sandboxes s SET spec_projection = shown.text::json, projection_bytes = octet_length(shown.text)
           FROM shown WHERE s.id = $1`,
    values: [id, hostPorts],
  })
}

/**
 * SQL: whether a sandbox `s` has no open run. An open run is always the last one, which is found by its id. A search
 * among the sandbox's runs can get a plan from when nothing ran. That read all open runs for each sandbox, and those
 * that had ended since the last vacuum: a tenth of the statements' time, with 128 clients that create and delete
 * (2026-11).
 */
export const HAS_NO_OPEN_RUN = '(SELECT ended_at IS NULL FROM runs WHERE id = s.run_id) IS NOT TRUE'

/**
 * Those of the given sandboxes that are hidden, or whose rows are deleted already, and that have no open run. Unknown
 * ids are not returned: a worker that has joined a different database must not lose its disks.
 */
export async function findDeleted(q: Queryable, ids: readonly SandboxId[]): Promise<readonly SandboxId[]> {
  const { rows } = await q.query<{ readonly id: SandboxId }>({
    name: 'sandboxes.findDeleted',
    text: `SELECT w.id FROM ${idRows('$1', 'w')}, LATERAL (SELECT visible_until, run_id FROM sandboxes WHERE id = w.id LIMIT 1) s
           WHERE s.visible_until IS NOT NULL AND ${HAS_NO_OPEN_RUN}
           UNION ALL SELECT id FROM pruned_sandboxes WHERE id = ANY($1::uuid[])`,
    values: [ids],
  })
  return rows.map(({ id }) => id)
}

/** A request's wait for a status. `mask` has a bit for each status, in the order of `SANDBOX_STATUSES`. */
export type StatusWait = {
  readonly id: SandboxId
  readonly mask: number
  /** The run that the request waits for. The wait also ends once the sandbox has a later run. Null: any run. */
  readonly run_id: RunId | null
}

/**
 * The sandboxes whose wait is over: the status is reached, the latest run is a different one, or the sandbox is hidden.
 */
export async function findSatisfied(q: Queryable, waits: readonly StatusWait[]): Promise<readonly SandboxId[]> {
  const { rows } = await q.query<{ readonly id: SandboxId }>({
    name: 'sandboxes.findSatisfied',
    text: `SELECT DISTINCT w.id FROM unnest($1::uuid[], $2::integer[], $3::uuid[]) AS w(id, mask, run_id)
           LEFT JOIN sandboxes s ON s.id = w.id
           WHERE s.id IS NULL OR s.visible_until IS NOT NULL OR s.run_id <> w.run_id
             OR (w.mask >> array_position($4::text[], s.status) - 1) & 1 = 1`,
    values: [
      waits.map(({ id }) => id),
      waits.map(({ mask }) => mask),
      waits.map(({ run_id }) => run_id),
      SANDBOX_STATUSES,
    ],
  })
  return rows.map(({ id }) => id)
}
