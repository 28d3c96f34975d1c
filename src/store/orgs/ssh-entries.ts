/** What the SSH server reads: who may enter which sandbox, and the key by which the server processes identify themselves. */
import type { OrgId, SandboxId, SshKeyId } from '../../domain/ids.ts'
import type { Queryable } from '../postgres/database.ts'

/** A key that may enter a sandbox. */
export type SshEntry = {
  readonly key_id: SshKeyId
  readonly key_name: string
  readonly org_id: OrgId
  readonly org_slug: string
  readonly sandbox_id: SandboxId
  readonly sandbox_slug: string
  readonly sandbox_name: string
}

/**
 * Finds the sandbox that a user name means, and the key of its organization with this fingerprint. A name is a slug, or
 * the name of a sandbox, a dot and the slug of its organization. `isAuthority` tells which kind of key is looked for.
 * Null if there is no such sandbox or no such key: one statement does the same work for both.
 */
export async function findEntry(
  q: Queryable,
  user: string,
  { fingerprint, isAuthority }: { readonly fingerprint: string; readonly isAuthority: boolean },
): Promise<SshEntry | null> {
  const dot = user.lastIndexOf('.')
  const { rows } = await q.query<SshEntry>({
    name: 'sshKeys.findEntry',
    text: `SELECT k.id AS key_id, k.name AS key_name, k.org_id, o.slug AS org_slug,
             s.id AS sandbox_id, s.slug AS sandbox_slug, s.name AS sandbox_name
           FROM ssh_keys k JOIN orgs o ON o.id = k.org_id
           JOIN sandboxes s ON s.org_id = k.org_id AND s.visible_until IS NULL
             AND (s.slug = $1 OR (s.name = $2 AND o.slug = $3))
           WHERE k.fingerprint = $4 AND starts_with(k.public_key, 'cert-authority ') = $5 LIMIT 1`,
    values: [
      user,
      dot === -1 ? null : user.slice(0, dot),
      dot === -1 ? null : user.slice(dot + 1),
      fingerprint,
      isAuthority,
    ],
  })
  return rows[0] ?? null
}

export type HostKeyRow = { readonly public_key: string; readonly key_sealed: Buffer }

/** The key of the server processes. Null until the first of them has made it. */
export async function findHostKey(q: Queryable): Promise<HostKeyRow | null> {
  const { rows } = await q.query<HostKeyRow>({ text: 'SELECT public_key, key_sealed FROM ssh_host_key' })
  return rows[0] ?? null
}

/** Stores the key of the server processes, unless there is one. */
export async function insertHostKey(q: Queryable, key: HostKeyRow & { readonly now: Date }): Promise<void> {
  await q.query({
    text: `INSERT INTO ssh_host_key (is_the_one, public_key, key_sealed, created_at) VALUES (true, $1, $2, $3)
           ON CONFLICT (is_the_one) DO NOTHING`,
    values: [key.public_key, key.key_sealed, key.now],
  })
}

/** Replaces a key that can't be unsealed any more. */
export async function replaceHostKey(
  q: Queryable,
  lost: Buffer,
  key: HostKeyRow & { readonly now: Date },
): Promise<void> {
  await q.query({
    text: 'UPDATE ssh_host_key SET public_key = $2, key_sealed = $3, created_at = $4 WHERE key_sealed = $1',
    values: [lost, key.public_key, key.key_sealed, key.now],
  })
}
