import type { Database } from '../../store/postgres/database.ts'
import * as sealingKey from '../../store/orgs/sealing-key.ts'

/**
 * Throws, with what to do, when this process was given another sealing key than those before it on this database: it
 * could open nothing of theirs, nor they what it seals.
 */
export async function requireSameSealingKey(db: Database, fingerprint: Buffer): Promise<void> {
  if (await db.transaction('system', (tx) => sealingKey.registerFingerprint(tx, fingerprint))) return
  throw new Error(
    'another sealing key is in use on this database. Give SANDYARD_SECRET_KEY the same value in every server process; ' +
      'without the variable the key is the content of `sealing.key` in the data folder of the first one. If that key is ' +
      'lost, so is what it sealed (registry passwords): docs/replicas.md says how to begin with a new one',
  )
}
