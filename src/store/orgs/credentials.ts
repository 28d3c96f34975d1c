/** Credentials for image registries. Their passwords are stored sealed (encrypted). */
import type { CredentialId, OrgId } from '../../domain/ids.ts'
import { ORG_MAXIMA } from '../../domain/org-maxima.ts'
import type { Queryable } from '../postgres/database.ts'
import * as orgs from './orgs.ts'

/** A credential as its organization sees it: without the password. */
export type CredentialRow = {
  readonly id: CredentialId
  readonly host: string
  readonly username: string
  readonly created_at: Date
}

/** A credential with its sealed password, for pulls from its registry. */
export type SealedCredential = Pick<CredentialRow, 'id' | 'host' | 'username'> & { readonly password_sealed: Buffer }

/** An organization's credential for a registry host, with its sealed password, or null. */
export async function findSealedByHost(q: Queryable, org: OrgId, host: string): Promise<SealedCredential | null> {
  const { rows } = await q.query<SealedCredential>({
    name: 'credentials.findSealedByHost',
    text: 'SELECT id, host, username, password_sealed FROM registry_credentials WHERE org_id = $1 AND host = $2',
    values: [org, host],
  })
  return rows[0] ?? null
}

/** One of an organization's credentials, with its sealed password, or null. */
export async function findSealed(q: Queryable, org: OrgId, id: CredentialId): Promise<SealedCredential | null> {
  const { rows } = await q.query<SealedCredential>({
    name: 'credentials.findSealed',
    text: 'SELECT id, host, username, password_sealed FROM registry_credentials WHERE org_id = $1 AND id = $2',
    values: [org, id],
  })
  return rows[0] ?? null
}

/** One of an organization's credentials as the organization sees it, or null. */
export async function find(q: Queryable, org: OrgId, id: CredentialId): Promise<CredentialRow | null> {
  const { rows } = await q.query<CredentialRow>({
    name: 'credentials.find',
    text: 'SELECT id, host, username, created_at FROM registry_credentials WHERE org_id = $1 AND id = $2',
    values: [org, id],
  })
  return rows[0] ?? null
}

/**
 * Saves a credential. If the host already has one, its username and password are replaced; its id and creation time
 * stay. Returns null if the organization already has the most credentials and none for the host. Locks the organization.
 */
export async function save(
  tx: Queryable,
  credential: SealedCredential & { readonly org_id: OrgId; readonly now: Date },
): Promise<CredentialRow | null> {
  await orgs.lock(tx, credential.org_id)
  const { rows } = await tx.query<CredentialRow>({
    text: `INSERT INTO registry_credentials (id, org_id, host, username, password_sealed, created_at)
           SELECT $1, $2, $3, $4, $5, $6 WHERE EXISTS (SELECT FROM registry_credentials WHERE org_id = $2 AND host = $3)
             OR (SELECT count(*) FROM registry_credentials WHERE org_id = $2) < $7
           ON CONFLICT (org_id, host) DO UPDATE SET username = excluded.username, password_sealed = excluded.password_sealed
           RETURNING id, host, username, created_at`,
    values: [
      credential.id,
      credential.org_id,
      credential.host,
      credential.username,
      credential.password_sealed,
      credential.now,
      ORG_MAXIMA.registry_credentials,
    ],
  })
  return rows[0] ?? null
}

/** A page of an organization's credentials, newest first. */
export async function page(
  q: Queryable,
  org: OrgId,
  before: string | null,
  limit: number,
): Promise<readonly CredentialRow[]> {
  const { rows } = await q.query<CredentialRow>({
    text: `SELECT id, host, username, created_at FROM registry_credentials
           WHERE org_id = $1 ${before === null ? '' : 'AND id < $3'} ORDER BY id DESC LIMIT $2`,
    values: before === null ? [org, limit] : [org, limit, before],
  })
  return rows
}

/** Deletes a credential and returns it. Null if it doesn't exist. */
export async function remove(
  tx: Queryable,
  org: OrgId,
  which: { readonly id: CredentialId } | { readonly host: string },
): Promise<CredentialRow | null> {
  const [column, value] = 'id' in which ? ['id', which.id] : ['host', which.host]
  const { rows } = await tx.query<CredentialRow>({
    text: `DELETE FROM registry_credentials WHERE org_id = $1 AND ${column} = $2 RETURNING id, host, username, created_at`,
    values: [org, value],
  })
  return rows[0] ?? null
}
