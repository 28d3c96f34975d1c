import type { Queryable } from '../postgres/database.ts'

/** Whether a key is the database's: it was before, it just became it instead of none or another one, or it isn't. */
export type KeyRegistration = 'known' | 'first' | 'replaced' | 'refused'

/**
 * Registers a sealing key by its fingerprint. The first key that is registered becomes the database's key. Another key can
 * replace it only while nothing that clients gave is sealed and no server process is registered. Call this in a
 * transaction of its own.
 */
export async function registerFingerprint(tx: Queryable, fingerprint: Buffer): Promise<KeyRegistration> {
  const values = [fingerprint]
  const first = await tx.query({
    text: 'INSERT INTO sealing_key (is_the_one, fingerprint) VALUES (true, $1) ON CONFLICT (is_the_one) DO NOTHING',
    values,
  })
  if (first.rowCount === 1) return 'first'
  const known = await tx.query({ text: 'SELECT FROM sealing_key WHERE fingerprint = $1 FOR UPDATE', values })
  if (known.rowCount === 1) return 'known'
  const { rowCount } = await tx.query({
    text: `UPDATE sealing_key SET fingerprint = $1 WHERE NOT (
             EXISTS (SELECT FROM registry_credentials) OR EXISTS (SELECT FROM webhooks) OR EXISTS (SELECT FROM replicas)
             OR EXISTS (SELECT FROM sandboxes WHERE registry_sealed IS NOT NULL OR secrets_sealed IS NOT NULL
               OR tls_key_sealed IS NOT NULL)
             OR EXISTS (SELECT FROM runs WHERE ended_at IS NULL AND secrets_sealed IS NOT NULL))`,
    values,
  })
  return rowCount === 1 ? 'replaced' : 'refused'
}
