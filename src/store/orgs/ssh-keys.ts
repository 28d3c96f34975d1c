/** The public keys of organizations, which open SSH connections to their sandboxes. */
import type { OrgId, SshKeyId } from '../../domain/ids.ts'
import { ORG_MAXIMA } from '../../domain/org-maxima.ts'
import type { Queryable } from '../postgres/database.ts'
import * as orgs from './orgs.ts'

export type SshKeyRow = {
  readonly id: SshKeyId
  readonly name: string
  readonly fingerprint: string
  readonly public_key: string
  readonly created_at: Date
}

const FIELDS = 'id, name, fingerprint, public_key, created_at'

/**
 * Inserts a key. Returns false if the organization already has the most keys. A fingerprint that the organization has violates
 * `ssh_keys_org_fingerprint_key`. Locks the organization.
 */
export async function insert(tx: Queryable, key: SshKeyRow & { readonly org_id: OrgId }): Promise<boolean> {
  const { id, org_id, name, fingerprint, public_key, created_at } = key
  await orgs.lock(tx, org_id)
  const { rowCount } = await tx.query({
    text: `INSERT INTO ssh_keys (id, org_id, name, fingerprint, public_key, created_at)
           SELECT $1, $2, $3, $4, $5, $6 WHERE (SELECT count(*) FROM ssh_keys WHERE org_id = $2) < $7`,
    values: [id, org_id, name, fingerprint, public_key, created_at, ORG_MAXIMA.ssh_keys],
  })
  return rowCount === 1
}

/** A page of an organization's keys, newest first. */
export async function page(
  q: Queryable,
  org: OrgId,
  before: string | null,
  limit: number,
): Promise<readonly SshKeyRow[]> {
  const { rows } = await q.query<SshKeyRow>({
    text: `SELECT ${FIELDS} FROM ssh_keys WHERE org_id = $1 ${before === null ? '' : 'AND id < $3'} ORDER BY id DESC LIMIT $2`,
    values: before === null ? [org, limit] : [org, limit, before],
  })
  return rows
}

/** One of an organization's keys, or null. */
export async function find(q: Queryable, org: OrgId, id: SshKeyId): Promise<SshKeyRow | null> {
  const { rows } = await q.query<SshKeyRow>({
    text: `SELECT ${FIELDS} FROM ssh_keys WHERE org_id = $1 AND id = $2`,
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Deletes a key, by its id or its fingerprint, and returns it. Null if it doesn't exist. */
export async function remove(
  tx: Queryable,
  org: OrgId,
  which: { readonly id: SshKeyId } | { readonly fingerprint: string },
): Promise<SshKeyRow | null> {
  const [column, value] = 'id' in which ? ['id', which.id] : ['fingerprint', which.fingerprint]
  const { rows } = await tx.query<SshKeyRow>({
    text: `DELETE FROM ssh_keys WHERE org_id = $1 AND ${column} = $2 RETURNING ${FIELDS}`,
    values: [org, value],
  })
  return rows[0] ?? null
}
