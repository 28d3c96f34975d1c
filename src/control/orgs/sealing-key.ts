import type { Database } from '../../store/postgres/database.ts'
import * as sealingKey from '../../store/orgs/sealing-key.ts'

/**
 * Throws if this process has a different sealing key than earlier processes on this database. A process can't unseal
 * what was sealed with another key. The error's message says how to fix it.
 */
export async function requireSameSealingKey(db: Database, fingerprint: Buffer): Promise<void> {
  if (await db.transaction('system', (tx) => sealingKey.registerFingerprint(tx, fingerprint))) return
  throw new Error(
    'another sealing key is in use on this database. Set SANDYARD_SECRET_KEY to the same value for every server process. ' +
      'Without it, the key is the content of `sealing.key` in the data folder of the first process. If that key is lost, so ' +
      'are the registry passwords and the values of secrets that it sealed: docs/replicas.md explains how to start with a new key',
  )
}
