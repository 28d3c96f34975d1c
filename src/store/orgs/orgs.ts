/** Organizations, and the default volume that is created with each organization. */
import type { OrgId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** An organization as `GET /v1/me/org` shows it, without the caller's role. */
export type OrgRow = {
  readonly id: OrgId
  readonly name: string
  readonly slug: string
  readonly mfa_required: boolean
  readonly created_at: Date
  readonly updated_at: Date
}

/** One organization, or null. */
export async function find(q: Queryable, id: OrgId): Promise<OrgRow | null> {
  const { rows } = await q.query<OrgRow>({
    name: 'orgs.find',
    text: 'SELECT id, name, slug, mfa_required, created_at, updated_at FROM orgs WHERE id = $1',
    values: [id],
  })
  return rows[0] ?? null
}

/** The first organization of the installation, or null before its first start. */
export async function findFirst(q: Queryable): Promise<OrgRow | null> {
  const { rows } = await q.query<OrgRow>({
    text: 'SELECT id, name, slug, mfa_required, created_at, updated_at FROM orgs ORDER BY created_at, id LIMIT 1',
  })
  return rows[0] ?? null
}

/** The organization with this slug, or null. */
export async function findBySlug(q: Queryable, slug: string): Promise<OrgRow | null> {
  const { rows } = await q.query<OrgRow>({
    text: 'SELECT id, name, slug, mfa_required, created_at, updated_at FROM orgs WHERE slug = $1',
    values: [slug],
  })
  return rows[0] ?? null
}

/** The organizations of the installation, by slug. */
export async function list(q: Queryable, limit: number): Promise<readonly OrgRow[]> {
  const { rows } = await q.query<OrgRow>({
    text: 'SELECT id, name, slug, mfa_required, created_at, updated_at FROM orgs ORDER BY slug LIMIT $1',
    values: [limit],
  })
  return rows
}

/** Adds an organization. */
export async function insert(
  q: Queryable,
  org: { readonly id: OrgId; readonly name: string; readonly slug: string; readonly now: Date },
): Promise<void> {
  await q.query({
    text: 'INSERT INTO orgs (id, name, slug, created_at, updated_at) VALUES ($1, $2, $3, $4, $4)',
    values: [org.id, org.name, org.slug, org.now],
  })
}

/** Adds the default volume of an organization, which can't be deleted. */
export async function insertDefaultVolume(
  q: Queryable,
  volume: { readonly id: string; readonly org_id: OrgId; readonly now: Date },
): Promise<void> {
  await q.query({
    text: `INSERT INTO volumes (id, org_id, kind, status, created_at, updated_at) VALUES ($1, $2, 'host', 'active', $3, $3)`,
    values: [volume.id, volume.org_id, volume.now],
  })
}

/**
 * Locks an organization until the transaction ends. Callers that count rows of the organization before they add one
 * take this lock, so that the count stays correct. Other inserts of rows that refer to the organization don't wait for
 * this lock. Lock order: sandboxes first, then the organization.
 */
export async function lock(tx: Queryable, id: OrgId): Promise<void> {
  const text = 'SELECT 1 AS locked FROM orgs WHERE id = $1 FOR NO KEY UPDATE'
  await tx.query({ name: 'orgs.lock', text, values: [id] })
}

/** Keeps other processes from creating the first organization until the transaction ends. */
export async function lockFirstOrg(tx: Queryable): Promise<void> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: first organization'))` })
}
