/** Sandboxes of all organizations, as operators see them. Every query needs a connection that sees all organizations. */
import type { OrgId, RunId, SandboxId, WorkerId } from '../../domain/ids.ts'
import type { SandboxStatus, StatusReason } from '../../domain/sandboxes/lifecycle.ts'
import type { Queryable } from '../postgres/database.ts'

/** A sandbox as `sandyard ps` shows it. */
export type ListedSandbox = {
  readonly org: string
  readonly id: SandboxId
  /** Its latest run. Null before the first start. */
  readonly run_id: RunId | null
  readonly name: string
  readonly slug: string
  readonly image: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly last_failure_message: string | null
  /** The worker of its latest run, or else the worker that stores its disk. */
  readonly worker: string | null
  readonly vcpus: number
  readonly memory_mib: number
  readonly created_at: Date
  readonly started_at: Date | null
  readonly stopped_at: Date | null
}

/** Which sandboxes to list, newest first. Null: any. `before` is exclusive. */
export type SandboxPage = {
  readonly org_id: OrgId | null
  readonly worker_id: WorkerId | null
  readonly before: SandboxId | null
  readonly limit: number
}

const LISTED = `o.slug AS org, s.id, s.run_id, s.name, s.slug, s.spec_projection ->> 'image' AS image, s.status, s.status_reason,
  s.last_failure_message, w.name AS worker, s.vcpus, s.memory_mib, s.created_at, s.started_at, s.stopped_at`

/** A page of the sandboxes with an open run. It reads open runs only, however many sandboxes are stopped. */
export function pageOfActive(q: Queryable, page: SandboxPage): Promise<readonly ListedSandbox[]> {
  return readPage(q, page, {
    name: 'active',
    text: (where) => `SELECT ${LISTED} FROM (
        SELECT r.sandbox_id, r.worker_id FROM runs r
        WHERE r.ended_at IS NULL AND r.sandbox_id < $1 ${where('r.worker_id')} ORDER BY r.sandbox_id DESC LIMIT $2) a
      JOIN sandboxes s ON s.id = a.sandbox_id JOIN orgs o ON o.id = s.org_id LEFT JOIN workers w ON w.id = a.worker_id
      ORDER BY s.id DESC`,
  })
}

/** A page of all sandboxes that are not deleted. */
export function pageOfAll(q: Queryable, page: SandboxPage): Promise<readonly ListedSandbox[]> {
  return readPage(q, page, {
    name: 'all',
    text: (where) => `SELECT ${LISTED} FROM (
        SELECT * FROM sandboxes r
        WHERE r.visible_until IS NULL AND r.id < $1 ${where('r.home_worker_id')} ORDER BY r.id DESC LIMIT $2) s
      JOIN orgs o ON o.id = s.org_id LEFT JOIN runs r ON r.id = s.run_id
      LEFT JOIN workers w ON w.id = coalesce(r.worker_id, s.home_worker_id) ORDER BY s.id DESC`,
  })
}

type PageStatement = { readonly name: string; readonly text: (where: (workerColumn: string) => string) => string }

async function readPage(
  q: Queryable,
  { org_id, worker_id, before, limit }: SandboxPage,
  { name, text }: PageStatement,
): Promise<readonly ListedSandbox[]> {
  const values: unknown[] = [before ?? 'ffffffff-ffff-ffff-ffff-ffffffffffff', limit]
  const equal = (column: string, value: string | null): string =>
    value === null ? '' : ` AND ${column} = $${String(values.push(value))}`
  const where = (workerColumn: string): string => equal('r.org_id', org_id) + equal(workerColumn, worker_id)
  const built = text(where)
  const filters = `${org_id === null ? '' : 'Org'}${worker_id === null ? '' : 'Worker'}`
  return (await q.query<ListedSandbox>({ name: `operatorSandboxes.${name}${filters}`, text: built, values })).rows
}

/** A sandbox that a text may mean. */
export type SandboxCandidate = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly org: string
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly is_deleted: boolean
}

const CANDIDATE = `s.id, s.org_id, o.slug AS org, s.name, s.slug, s.status, s.visible_until IS NOT NULL AS is_deleted`

/** The sandboxes whose id is in a range, both ends included. Deleted ones are included. */
export async function findByIdRange(
  q: Queryable,
  range: { readonly from: string; readonly to: string; readonly org_id: OrgId | null },
  limit: number,
): Promise<readonly SandboxCandidate[]> {
  const { rows } = await q.query<SandboxCandidate>({
    name: 'operatorSandboxes.findByIdRange',
    text: `SELECT ${CANDIDATE} FROM sandboxes s JOIN orgs o ON o.id = s.org_id
           WHERE s.id BETWEEN $1 AND $2 AND ($3::uuid IS NULL OR s.org_id = $3) ORDER BY s.id LIMIT $4`,
    values: [range.from, range.to, range.org_id, limit],
  })
  return rows
}

/** The sandboxes with this slug or name, not the deleted ones. */
export async function findNamed(
  q: Queryable,
  text: string,
  org: OrgId | null,
  limit: number,
): Promise<readonly SandboxCandidate[]> {
  const { rows } = await q.query<SandboxCandidate>({
    name: 'operatorSandboxes.findNamed',
    text: `SELECT DISTINCT ON (s.id) ${CANDIDATE} FROM (
             (SELECT id FROM sandboxes WHERE slug = $1 AND visible_until IS NULL)
             UNION ALL
             (SELECT n.id FROM orgs g, LATERAL (
               SELECT id FROM sandboxes WHERE org_id = g.id AND name = $1 AND visible_until IS NULL) n)) f
           JOIN sandboxes s ON s.id = f.id JOIN orgs o ON o.id = s.org_id
           WHERE $2::uuid IS NULL OR s.org_id = $2 ORDER BY s.id LIMIT $3`,
    values: [text, org, limit],
  })
  return rows
}

/** For each organization, the last deleted sandbox with this name. */
export async function findDeletedNamed(
  q: Queryable,
  name: string,
  org: OrgId | null,
  limit: number,
): Promise<readonly SandboxCandidate[]> {
  const { rows } = await q.query<SandboxCandidate>({
    name: 'operatorSandboxes.findDeletedNamed',
    text: `SELECT ${CANDIDATE} FROM orgs o, LATERAL (
             SELECT * FROM sandboxes WHERE org_id = o.id AND name = $1 AND visible_until IS NOT NULL
             ORDER BY visible_until DESC LIMIT 1) s
           WHERE $2::uuid IS NULL OR o.id = $2 LIMIT $3`,
    values: [name, org, limit],
  })
  return rows
}

/** The names and slugs of the newest sandboxes. */
export async function newestNames(q: Queryable, org: OrgId | null, limit: number): Promise<readonly string[]> {
  const ofOrg = org === null ? '' : 'AND org_id = $2'
  const { rows } = await q.query<{ readonly name: string; readonly slug: string }>({
    name: `operatorSandboxes.newestNames${org === null ? '' : 'Org'}`,
    text: `SELECT name, slug FROM sandboxes WHERE visible_until IS NULL ${ofOrg} ORDER BY id DESC LIMIT $1`,
    values: org === null ? [limit] : [limit, org],
  })
  return rows.flatMap(({ name, slug }) => [name, slug])
}
