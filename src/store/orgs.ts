/** Organizations with their members, keys, volumes and registry credentials. */
import type { ApiKeyId, CredentialId, OrgId } from '../domain/ids.ts'
import type { Role, Scope } from '../domain/caller.ts'
import type { Queryable } from './database.ts'

/** An organization as `GET /v1/me/org` shows it, but for the caller's role. */
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
export async function first(q: Queryable): Promise<OrgRow | null> {
  const { rows } = await q.query<OrgRow>({
    text: 'SELECT id, name, slug, mfa_required, created_at, updated_at FROM orgs ORDER BY created_at, id LIMIT 1',
  })
  return rows[0] ?? null
}

/** The organization of a slug, or null. */
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

export async function insertOrg(
  q: Queryable,
  org: { readonly id: OrgId; readonly name: string; readonly slug: string; readonly now: Date },
): Promise<void> {
  await q.query({
    text: 'INSERT INTO orgs (id, name, slug, created_at, updated_at) VALUES ($1, $2, $3, $4, $4)',
    values: [org.id, org.name, org.slug, org.now],
  })
}

/** Adds a user and the membership that ties it to an organization. */
export async function insertMember(
  q: Queryable,
  member: {
    readonly id: string
    readonly org_id: OrgId
    readonly user_id: string
    readonly email: string
    readonly role: Role
    readonly now: Date
  },
): Promise<void> {
  await q.query({
    text: 'INSERT INTO users (id, email, created_at) VALUES ($1, $2, $3) ON CONFLICT (email) DO NOTHING',
    values: [member.user_id, member.email, member.now],
  })
  await q.query({
    text: `INSERT INTO members (id, org_id, user_id, role, joined_at)
           SELECT $1, $2, u.id, $4, $5 FROM users u WHERE u.email = $3`,
    values: [member.id, member.org_id, member.email, member.role, member.now],
  })
}

/** Adds the undeletable host volume of an organization. */
export async function insertHostVolume(
  q: Queryable,
  volume: { readonly id: string; readonly org_id: OrgId; readonly now: Date },
): Promise<void> {
  await q.query({
    text: `INSERT INTO volumes (id, org_id, kind, status, created_at, updated_at) VALUES ($1, $2, 'host', 'active', $3, $3)`,
    values: [volume.id, volume.org_id, volume.now],
  })
}

export type NewApiKey = {
  readonly id: ApiKeyId
  readonly org_id: OrgId
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly secretSha256: Buffer
  readonly now: Date
  readonly expires_at: Date | null
}

/** Adds an API key by the hash of its secret; a secret that exists already violates `api_keys_secret_key`. */
export async function insertApiKey(q: Queryable, key: NewApiKey): Promise<void> {
  await q.query({
    text: `INSERT INTO api_keys (id, org_id, name, scopes, secret_sha256, created_at, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7)`,
    values: [key.id, key.org_id, key.name, key.scopes, key.secretSha256, key.now, key.expires_at],
  })
}

/** A key that may be used at `now`. */
export type LiveKey = {
  readonly id: ApiKeyId
  readonly org_id: OrgId
  readonly name: string
  readonly scopes: readonly Scope[]
  readonly expires_at: Date | null
}

/** The live key that a secret's hash belongs to, or null. */
export async function findLiveKey(q: Queryable, secretSha256: Buffer, now: Date): Promise<LiveKey | null> {
  const { rows } = await q.query<LiveKey>({
    name: 'orgs.findLiveKey',
    text: `SELECT id, org_id, name, scopes, expires_at FROM api_keys
           WHERE secret_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)`,
    values: [secretSha256, now],
  })
  return rows[0] ?? null
}

/** Notes that a key was used. */
export async function touchKey(q: Queryable, id: ApiKeyId, now: Date): Promise<void> {
  await q.query({
    name: 'orgs.touchKey',
    text: 'UPDATE api_keys SET last_used_at = $2 WHERE id = $1',
    values: [id, now],
  })
}

export type CredentialRow = {
  readonly id: CredentialId
  readonly host: string
  readonly username: string
  readonly password_sealed: Buffer
}

/** An organization's credential for a registry's host, or null. */
export async function findCredentialByHost(q: Queryable, org: OrgId, host: string): Promise<CredentialRow | null> {
  const { rows } = await q.query<CredentialRow>({
    name: 'orgs.findCredentialByHost',
    text: 'SELECT id, host, username, password_sealed FROM registry_credentials WHERE org_id = $1 AND host = $2',
    values: [org, host],
  })
  return rows[0] ?? null
}

/** One of an organization's credentials, or null. */
export async function findCredential(q: Queryable, org: OrgId, id: CredentialId): Promise<CredentialRow | null> {
  const { rows } = await q.query<CredentialRow>({
    name: 'orgs.findCredential',
    text: 'SELECT id, host, username, password_sealed FROM registry_credentials WHERE org_id = $1 AND id = $2',
    values: [org, id],
  })
  return rows[0] ?? null
}

/** Saves a credential for a host, in place of an earlier one of the same host; answers its id. */
export async function saveCredential(
  q: Queryable,
  credential: CredentialRow & { readonly org_id: OrgId; readonly now: Date },
): Promise<CredentialId> {
  const { rows } = await q.query<{ readonly id: CredentialId }>({
    text: `INSERT INTO registry_credentials (id, org_id, host, username, password_sealed, created_at)
           VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (org_id, host)
           DO UPDATE SET username = excluded.username, password_sealed = excluded.password_sealed RETURNING id`,
    values: [
      credential.id,
      credential.org_id,
      credential.host,
      credential.username,
      credential.password_sealed,
      credential.now,
    ],
  })
  const [row] = rows
  if (row === undefined) throw new Error('a saved credential has no row')
  return row.id
}

/** Whether an organization may start nothing now. */
export async function isSuspended(q: Queryable, id: OrgId): Promise<boolean> {
  const { rows } = await q.query({
    text: 'SELECT 1 AS suspended FROM orgs WHERE id = $1 AND suspended_at IS NOT NULL',
    values: [id],
  })
  return rows.length > 0
}

/** Lets one starter at a time look whether there is an organization; held until the transaction ends. */
export async function lockFirst(tx: Queryable): Promise<void> {
  await tx.query({ text: `SELECT pg_advisory_xact_lock(hashtext('sandyard: first organization'))` })
}
