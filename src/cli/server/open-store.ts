import { existsSync } from 'node:fs'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { openDatabase, type OpenDatabase } from '../../store/postgres/database.ts'
import { freeBallastIfFull } from '../../store/embedded/ballast.ts'
import { DataFolderInUse } from '../../store/embedded/data-lock.ts'
import { startEmbedded } from '../../store/embedded/embedded-server.ts'
import { readMigrations } from '../../store/postgres/migrate.ts'
import { prepareSchema, type DatabaseUrls, type ServerRole } from '../../store/postgres/prepare-schema.ts'
import { lockSchema, type SchemaLock } from '../../store/postgres/schema-lock.ts'
import { ensureDataFolder, openDataFolder } from './data-folder.ts'
import { mountDataFolder } from './data-mount.ts'

export const MIGRATIONS_DIR = join(import.meta.dirname, '..', '..', '..', 'migrations')

/** The open, migrated database of an installation. It is either external or embedded. */
export type Store = {
  readonly db: OpenDatabase
  readonly connectionString: string
  /** The role of `connectionString`. */
  readonly serverRole: ServerRole
  /** The newest migration that this program knows. */
  readonly schemaVersion: number
  readonly schema: SchemaLock
  /** Whether the file system of the embedded database is full. False for another database. */
  isDiskFull(): boolean
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

/** The folder of the embedded database in the data folder. */
const DATABASE_FOLDER = 'database'
/**
 * The files with the URLs of the embedded server's two roles while it runs: the role that serves requests, and the owner.
 * Commands of Sandyard read them to use the same database. Only the owner of the files can read them.
 */
const ADDRESS_FILE = 'database.url'
const OWNER_ADDRESS_FILE = 'database-owner.url'

/** Opens and migrates the database of `DATABASE_URL`, or else starts the embedded one. */
export async function openStore(config: Config, log: Log): Promise<Store> {
  if (config.databaseUrl !== null)
    return openExternal({ server: config.databaseUrl, owner: config.databaseOwnerUrl }, log)
  await ensureDataFolder(config.dataDir)
  const embedded = await startEmbedded({
    dataDir: join(config.dataDir, DATABASE_FOLDER),
    ballastMib: config.ballastMib,
    log,
    clock: systemClock,
    random: systemRandom,
  })
  const urls = { server: embedded.connectionString, owner: embedded.ownerConnectionString }
  const address = join(config.dataDir, ADDRESS_FILE)
  const ownerAddress = join(config.dataDir, OWNER_ADDRESS_FILE)
  await writeFile(ownerAddress, urls.owner, { mode: 0o600 })
  await writeFile(address, urls.server, { mode: 0o600 })
  const store = await prepareAndOpen(urls, log, async () => {
    await Promise.all([rm(address, { force: true }), rm(ownerAddress, { force: true })])
    await embedded.stop()
  })
  return { ...store, isDiskFull: () => embedded.isDiskFull() }
}

/** Deletes the ballast of the embedded database if its disk is full: the locks of the data folder need some space too. */
export function freeDatabaseBallast({ dataDir }: Pick<Config, 'dataDir'>, log: Log): void {
  const dir = join(dataDir, DATABASE_FOLDER)
  if (existsSync(dir)) freeBallastIfFull({ dir, log })
}

/** Opens the database of `DATABASE_URL`. Errors don't contain the URLs, because they contain passwords. */
async function openExternal(urls: DatabaseUrls, log: Log): Promise<Store> {
  try {
    return await prepareAndOpen(urls, log, () => Promise.resolve())
  } catch (error) {
    throw new Error("the PostgreSQL of DATABASE_URL can't be used", { cause: error })
  }
}

/**
 * Opens the database for a short command, as `openStore` does. If a server runs on the data folder, connects to the
 * PostgreSQL that the server started.
 */
export async function openSharedStore(given: Config, log: Log): Promise<Store> {
  if (given.databaseUrl !== null) return openStore(given, log)
  await using opened = new AsyncDisposableStack()
  await ensureDataFolder(given.dataDir)
  const folder = await openDataFolder(given.dataDir, systemRandom, given.secretKey)
  const mounted = opened.use(await mountDataFolder(folder))
  const store = opened.use(await openRunningStore({ ...given, dataDir: mounted.path }, log))
  const parts = opened.move()
  return { ...store, [Symbol.asyncDispose]: () => parts.disposeAsync() }
}

async function openRunningStore(config: Config, log: Log): Promise<Store> {
  try {
    return await openStore(config, log)
  } catch (error) {
    if (!(error instanceof DataFolderInUse)) throw error
    const server = await readFile(join(config.dataDir, ADDRESS_FILE), 'utf8')
    return prepareAndOpen({ server, owner: await readOwnerAddress(config) }, log, () => Promise.resolve())
  }
}

/** Reads the owner's URL. Null if a server of an earlier release runs, whose only role is the owner. */
async function readOwnerAddress(config: Pick<Config, 'dataDir'>): Promise<string | null> {
  try {
    return await readFile(join(config.dataDir, OWNER_ADDRESS_FILE), 'utf8')
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

/** Reads the URL of the role that owns the tables, while a server runs on the data folder. */
export async function readOwnerUrl(config: Pick<Config, 'dataDir'>): Promise<string> {
  return (await readOwnerAddress(config)) ?? readFile(join(config.dataDir, ADDRESS_FILE), 'utf8')
}

async function prepareAndOpen(urls: DatabaseUrls, log: Log, stop: () => Promise<void>): Promise<Store> {
  const connectionString = urls.server
  try {
    const serverRole = await prepareSchema(urls, MIGRATIONS_DIR, log)
    const migrations = await readMigrations(MIGRATIONS_DIR)
    await using opened = new AsyncDisposableStack()
    const schema = opened.use(await lockSchema({ connectionString, migrations, clock: systemClock, log }))
    const db = await openDatabase({
      connectionString,
      tenantPoolSize: TENANT_CONNECTIONS,
      connectionsPerOrg: TENANT_CONNECTIONS / 3,
      connectionsPerOrgAmongOthers: TENANT_CONNECTIONS / 6,
      systemPoolSize: SYSTEM_CONNECTIONS,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      log,
    })
    const parts = opened.move()
    return {
      db,
      connectionString,
      serverRole,
      schemaVersion: migrations.length,
      schema,
      isDiskFull: () => false,
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
