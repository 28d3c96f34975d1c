import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { openDatabase, type Database } from '../../store/postgres/database.ts'
import { DataFolderInUse } from '../../store/embedded/data-lock.ts'
import { startEmbedded } from '../../store/embedded/embedded-server.ts'
import { migrate, readMigrations } from '../../store/postgres/migrate.ts'
import { lockSchema, type SchemaLock } from '../../store/postgres/schema-lock.ts'
import { ensureDataFolder } from './data-folder.ts'

export const MIGRATIONS_DIR = join(import.meta.dirname, '..', '..', '..', 'migrations')

/** The open, migrated database of an installation. It is either external or embedded. */
export type Store = {
  readonly db: Database
  readonly connectionString: string
  /** The newest migration that this program knows. */
  readonly schemaVersion: number
  readonly schema: SchemaLock
} & AsyncDisposable

/**
 * The sizes of the two connection pools: for requests, and for the program's own work. A page of a long list uses one
 * connection for some milliseconds.
 */
const TENANT_CONNECTIONS = 12
const SYSTEM_CONNECTIONS = 8
/**
 * The time limit of one SQL statement. A statement that isn't blocked needs less than a tenth of the limit. Requests
 * whose statement exceeds the limit get 503.
 */
const STATEMENT_TIMEOUT_MS = 8_000

/**
 * The file that contains the embedded server's URL while the server runs. Commands of Sandyard read it to use the same
 * database. Only the owner of the file can read it.
 */
const ADDRESS_FILE = 'database.url'

/** Opens and migrates the database of `DATABASE_URL`, or else starts the embedded one. */
export async function openStore(config: Config, log: Log): Promise<Store> {
  if (config.databaseUrl !== null) return openExternal(config.databaseUrl, log)
  await ensureDataFolder(config.dataDir)
  const embedded = await startEmbedded({
    dataDir: join(config.dataDir, 'database'),
    log,
    clock: systemClock,
    random: systemRandom,
  })
  const address = join(config.dataDir, ADDRESS_FILE)
  await writeFile(address, embedded.connectionString, { mode: 0o600 })
  return migrateAndOpen(embedded.connectionString, log, async () => {
    await rm(address, { force: true })
    await embedded.stop()
  })
}

/** Opens the database of `DATABASE_URL`. Errors don't contain the URL, because it contains a password. */
async function openExternal(connectionString: string, log: Log): Promise<Store> {
  try {
    return await migrateAndOpen(connectionString, log, () => Promise.resolve())
  } catch (error) {
    throw new Error("the PostgreSQL of DATABASE_URL can't be used", { cause: error })
  }
}

/**
 * Opens the database for a short command, as `openStore` does. If a server runs on the data folder, connects to the
 * PostgreSQL that the server started.
 */
export async function openSharedStore(config: Config, log: Log): Promise<Store> {
  try {
    return await openStore(config, log)
  } catch (error) {
    if (!(error instanceof DataFolderInUse)) throw error
    const connectionString = await readFile(join(config.dataDir, ADDRESS_FILE), 'utf8')
    return migrateAndOpen(connectionString, log, () => Promise.resolve())
  }
}

async function migrateAndOpen(connectionString: string, log: Log, stop: () => Promise<void>): Promise<Store> {
  try {
    await migrate(connectionString, MIGRATIONS_DIR, log)
    const migrations = await readMigrations(MIGRATIONS_DIR)
    await using opened = new AsyncDisposableStack()
    const schema = opened.use(await lockSchema({ connectionString, migrations, clock: systemClock, log }))
    const db = await openDatabase({
      connectionString,
      tenantPoolSize: TENANT_CONNECTIONS,
      connectionsPerOrg: TENANT_CONNECTIONS / 3,
      systemPoolSize: SYSTEM_CONNECTIONS,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      log,
    })
    const parts = opened.move()
    return {
      db,
      connectionString,
      schemaVersion: migrations.length,
      schema,
      async [Symbol.asyncDispose]() {
        await db.close()
        await parts.disposeAsync()
        await stop()
      },
    }
  } catch (error) {
    await stop()
    throw error
  }
}
