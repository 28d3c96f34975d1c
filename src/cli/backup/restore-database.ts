import { readFile } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { endRestoredRuns } from '../../control/sandboxes/transitions/end-restored-runs.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { makeUuids } from '../../lib/uuid.ts'
import { loadTables } from '../../store/backup/load-tables.ts'
import { startEmbedded } from '../../store/embedded/embedded-server.ts'
import { migrate, readMigrations } from '../../store/postgres/migrate.ts'
import { openNotifications } from '../../store/postgres/notifications.ts'
import { MIGRATIONS_DIR, openStore } from '../server/open-store.ts'
import type { Manifest } from './manifest.ts'
import type { Repository } from './repository.ts'
import { readStored } from './stored-streams.ts'

type RestoreDatabaseInput = {
  readonly config: Config
  readonly repository: Pick<Repository, 'readChunk'>
  readonly manifest: Manifest
  readonly log: Log
}

/** Rejects if this program doesn't have exactly the migrations of a backup, among its own. */
export async function requireKnownMigrations({ database, release }: Manifest): Promise<void> {
  if (database === null) return
  const known = await readMigrations(MIGRATIONS_DIR)
  for (const { id, name, sha256 } of database.migrations)
    if (known[id - 1]?.sha256 !== sha256)
      throw new Error(
        `this program doesn't have the migration ${name} of the backup, which release ${release} made: restore it with that release or a later one`,
      )
}

/**
 * Restores the tables into a new embedded database, and applies later migrations. The format doesn't depend on
 * PostgreSQL's version. Resolves with how many runs were open and are ended.
 */
export async function restoreDatabase(input: RestoreDatabaseInput): Promise<number> {
  const { config, manifest, repository, log } = input
  const { database } = manifest
  if (database === null) return 0
  const server = await startEmbedded({
    dataDir: join(config.dataDir, 'database'),
    log,
    clock: systemClock,
    random: systemRandom,
  })
  try {
    const { ownerConnectionString } = server
    await migrate(ownerConnectionString, MIGRATIONS_DIR, log, database.migrations.length)
    const adminUrl = new URL(server.adminConnectionString)
    adminUrl.pathname = new URL(ownerConnectionString).pathname
    const tables = database.tables.map((table) => ({ ...table, read: () => readStored(repository, table) }))
    await loadTables(adminUrl.href, tables)
  } finally {
    await server.stop()
  }
  return endRuns(input)
}

async function endRuns({ config, manifest, log }: RestoreDatabaseInput): Promise<number> {
  const takenAt = new Date(manifest.taken_at)
  const clock = { ...systemClock, now: () => takenAt }
  const credential = join(config.dataDir, 'worker.credential')
  await using store = await openStore({ ...config, databaseUrl: null, databaseOwnerUrl: null }, log) // migrates
  if (!existsSync(credential)) return 0 // its workers are other machines
  const { connectionString, db } = store
  await using notifications = await openNotifications({ connectionString, clock: systemClock, log, windowMs: 0 })
  const { ended } = await endRestoredRuns(
    { db, clock, uuids: makeUuids(clock, systemRandom), notifications, log },
    { credential: await readFile(credential, 'utf8'), restoredAt: systemClock.now() },
  )
  return ended
}
