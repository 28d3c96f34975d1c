import type { Queryable } from '../postgres/database.ts'

/**
 * Registers a sealing key by its fingerprint. Returns whether this is the database's key. The first key that is
 * registered becomes the database's key. Another key can replace it only while nothing is sealed and no server process
 * is registered. Call this in a transaction of its own.
 */
export async function registerFingerprint(tx: Queryable, fingerprint: Buffer): Promise<boolean> {
  await tx.query({
    text: 'INSERT INTO sealing_key (is_the_one, fingerprint) VALUES (true, $1) ON CONFLICT (is_the_one) DO NOTHING',
    values: [fingerprint],
  })
  const { rowCount } = await tx.query({
    text: `UPDATE sealing_key SET fingerprint = $1 WHERE fingerprint = $1 OR NOT (
             EXISTS (SELECT FROM registry_credentials) OR EXISTS (SELECT FROM replicas)
             OR EXISTS (SELECT FROM sandboxes WHERE registry_sealed IS NOT NULL OR secrets_sealed IS NOT NULL
               OR tls_key_sealed IS NOT NULL))`,
    values: [fingerprint],
  })
  return rowCount === 1
}
