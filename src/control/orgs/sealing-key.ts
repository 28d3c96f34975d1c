import type { Database } from '../../store/postgres/database.ts'
import * as sealingKey from '../../store/orgs/sealing-key.ts'

/**
 * Throws if this process has a different sealing key than earlier processes on this database. A process can't unseal
 * what was sealed with another key. The error's message says how to fix it. Resolves with `replaced` if the key of earlier
 * processes had sealed only what a server makes again by itself.
 */
export async function requireSameSealingKey(
  db: Database,
  fingerprint: Buffer,
): Promise<Exclude<sealingKey.KeyRegistration, 'refused'>> {
  const registration = await db.transaction('system', (tx) => sealingKey.registerFingerprint(tx, fingerprint))
  if (registration !== 'refused') return registration
  throw new Error(
    'another sealing key is in use on this database. Set SANDYARD_SECRET_KEY to the same value for every server process. ' +
      'Without it, the key is the content of `sealing.key` in the data folder of the first process. If that key is lost, so ' +
      'are the registry passwords and the secrets of sandboxes and webhooks that it sealed: docs/replicas.md explains how to start with a new key',
  )
}
