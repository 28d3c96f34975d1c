import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { openSnapshot, type DatabaseSnapshot } from '../../store/backup/dump-tables.ts'
import { DataFolderInUse } from '../../store/embedded/data-lock.ts'
import { startEmbedded } from '../../store/embedded/embedded-server.ts'
import { readOwnerUrl } from '../server/open-store.ts'
import type { Manifest, Stored, StoredTable } from './manifest.ts'

/**
 * Opens a snapshot of the embedded database, whether or not a server runs on it. Applies no migration: a release can back
 * up the data of an earlier one. Null if the data folder has no database.
 */
export async function openEmbeddedSnapshot(
  { dataDir }: Pick<Config, 'dataDir'>,
  log: Log,
): Promise<DatabaseSnapshot | null> {
  const folder = join(dataDir, 'database')
  if (!existsSync(folder)) return null
  try {
    const server = await startEmbedded({ dataDir: folder, log, clock: systemClock, random: systemRandom })
    try {
      const snapshot = await openSnapshot(server.ownerConnectionString)
      return {
        ...snapshot,
        async [Symbol.asyncDispose]() {
          await snapshot[Symbol.asyncDispose]()
          await server.stop()
        },
      }
    } catch (error) {
      await server.stop()
      throw error
    }
  } catch (error) {
    if (!(error instanceof DataFolderInUse)) throw error
    return openSnapshot(await readOwnerUrl({ dataDir }))
  }
}

/** Stores all tables of a snapshot. */
export async function takeDatabase(
  snapshot: DatabaseSnapshot,
  store: (stream: AsyncIterable<Uint8Array>) => Promise<Stored>,
): Promise<Manifest['database']> {
  const tables: StoredTable[] = []
  for (const table of snapshot.tables) {
    const reading = snapshot.read(table)
    const stored = await store(reading.rows)
    tables.push({ ...table, ...stored, rows: reading.count() })
  }
  return { migrations: snapshot.migrations, tables }
}
