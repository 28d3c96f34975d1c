import { createHash } from 'node:crypto'
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { DataFolderInUse, lockDataFolder } from '../../src/store/embedded/data-lock.ts'
import { startEmbedded } from '../../src/store/embedded/embedded-server.ts'
import { readMigrations } from '../../src/store/postgres/migrate.ts'
import { prepareSchema } from '../../src/store/postgres/prepare-schema.ts'
import { stopOrphans } from '../../src/store/embedded/postmaster.ts'

/** A database for one test. */
export type TestDatabase = {
  /** For the role that serves requests. In an empty database, it is the owner's. */
  readonly url: string
  /** For the role that owns the tables. Row-level security applies to it, too. */
  readonly ownerUrl: string
  /** For the superuser. */
  readonly adminUrl: string
  close(): Promise<void>
}

/** A PostgreSQL server for tests, and the URL of its superuser. */
export type TestServer = { readonly adminUrl: string; stop(): Promise<void> }

/** The variable with the superuser URL of the server that test files share. */
export const TEST_SERVER_VARIABLE = 'SANDYARD_TEST_DATABASE_URL'

const MIGRATIONS_DIR = join(import.meta.dirname, '..', '..', 'migrations')
const OWNER = 'sandyard_test'
const SERVER_ROLE = 'sandyard_test_server'

const TEMPORARY_PREFIX = '/tmp/sandyard-test-'
const LEFT_BEHIND_AFTER_MS = 600_000

/**
 * Starts a server in a temporary folder. The server doesn't sync to disk. Tests of durability start a server of their
 * own.
 */
export async function startTestServer(): Promise<TestServer> {
  const { server, dataDir } = await startTemporary()
  return {
    adminUrl: server.adminConnectionString,
    async stop() {
      await server.stop()
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

/**
 * Creates a database for one test, as a copy of a template that has the migrations. The template is created once per server.
 * Uses the server of the test run, or starts one that ends with this process.
 */
export async function makeTestDatabase(): Promise<TestDatabase> {
  return copyDatabase(await ensureTemplate(await findServer()))
}

/** Like `makeTestDatabase`, but without any table. */
export async function makeEmptyDatabase(): Promise<TestDatabase> {
  const adminUrl = await findServer()
  await onServer(adminUrl, ensureRoles)
  const database = await copyDatabase({ adminUrl, template: 'template0' })
  return { ...database, url: database.ownerUrl }
}

/** Runs `fn` on a connection of the superuser. */
export async function onServer<T>(adminUrl: string, fn: (admin: Client) => Promise<T>): Promise<T> {
  const admin = new Client({ connectionString: adminUrl })
  await admin.connect()
  try {
    return await fn(admin)
  } finally {
    await admin.end()
  }
}

/** The superuser URL of the server that this process has started. Null if it has started none. */
let ownServer: Promise<string> | null = null
let templates: Promise<Template> | null = null
let databasesMade = 0

type Template = { readonly adminUrl: string; readonly template: string }

function findServer(): Promise<string> {
  const given = process.env[TEST_SERVER_VARIABLE]
  if (given !== undefined && given !== '') return Promise.resolve(given)
  return (ownServer ??= startOwnServer())
}

/**
 * Starts a server that ends with this process. An `exit` listener can't await a clean shutdown, so it sends SIGQUIT,
 * polls until the server has ended, and deletes the data.
 */
async function startOwnServer(): Promise<string> {
  const { server, dataDir } = await startTemporary()
  process.once('exit', () => {
    process.kill(server.pid(), 'SIGQUIT')
    const pause = new Int32Array(new SharedArrayBuffer(4))
    for (let tries = 0; tries < 200 && isRunning(server.pid()); tries++) Atomics.wait(pause, 0, 0, 10)
    rmSync(dataDir, { recursive: true, force: true, maxRetries: 5 })
  })
  return server.adminConnectionString
}

async function startTemporary() {
  await sweep()
  const dataDir = await mkdtemp(TEMPORARY_PREFIX)
  const server = await startEmbedded({
    dataDir,
    log: makeLog('error'),
    clock: systemClock,
    random: systemRandom,
    settings: { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off', max_connections: '200' },
  })
  return { server, dataDir }
}

/** Removes the folders that killed test processes left behind. */
async function sweep(): Promise<void> {
  const names = (await readdir('/tmp')).filter((name) => join('/tmp', name).startsWith(TEMPORARY_PREFIX))
  for (const dir of names.map((name) => join('/tmp', name))) {
    const found = statSync(dir, { throwIfNoEntry: false }) // undefined if its owner has just removed it
    if (found === undefined || systemClock.now().getTime() - found.mtime.getTime() < LEFT_BEHIND_AFTER_MS) continue
    try {
      using _lock = lockDataFolder(dir)
      const clusterDir = join(dir, 'postgres', 'data')
      const socketDir = join(dir, 'postgres', 'run')
      if (existsSync(clusterDir))
        await stopOrphans({ clusterDir, socketDir, clock: systemClock, log: makeLog('error') })
      await rm(dir, { recursive: true, force: true })
    } catch (error) {
      if (!(error instanceof DataFolderInUse)) throw error
    }
  }
}

function ensureTemplate(adminUrl: string): Promise<Template> {
  return (templates ??= makeTemplate(adminUrl))
}

async function makeTemplate(adminUrl: string): Promise<Template> {
  const migrations = await readMigrations(MIGRATIONS_DIR)
  const digest = createHash('sha256')
    .update(migrations.map((migration) => migration.sha256).join())
    .digest('hex')
  const template = `sandyard_template_${digest.slice(0, 16)}`
  await onServer(adminUrl, async (admin) => {
    // One test file at a time creates the template.
    await admin.query(`select pg_advisory_lock(hashtextextended('sandyard template', 0))`)
    await ensureRoles(admin)
    const found = await admin.query('select from pg_database where datname = $1', [template])
    if (found.rowCount !== 0) return
    const draft = `${template}_draft`
    await admin.query(`drop database if exists ${draft} with (force)`)
    await admin.query(`create database ${draft} owner ${OWNER}`)
    const urls = { server: urlFor(adminUrl, draft, SERVER_ROLE), owner: urlFor(adminUrl, draft, OWNER) }
    await prepareSchema(urls, MIGRATIONS_DIR, makeLog('error'))
    await admin.query(`alter database ${draft} rename to ${template}`)
  })
  return { adminUrl, template }
}

async function ensureRoles(admin: Client): Promise<void> {
  await admin.query(`select pg_advisory_lock(hashtextextended('sandyard test role', 0))`)
  for (const role of [OWNER, SERVER_ROLE]) {
    const { rowCount } = await admin.query('select from pg_roles where rolname = $1', [role])
    if (rowCount === 0) await admin.query(`create role ${role} login nosuperuser nobypassrls password '${role}'`)
  }
}

async function copyDatabase({ adminUrl, template }: Template): Promise<TestDatabase> {
  const name = `test_${String(process.pid)}_${String(++databasesMade)}_${systemRandom.bytes(4).toString('hex')}`
  await onServer(adminUrl, async (admin) => {
    await admin.query(`create database ${name} template ${template} owner ${OWNER}`)
    await admin.query(`revoke temporary on database ${name} from public`) // the copy has default rights
  })
  return {
    url: urlFor(adminUrl, name, SERVER_ROLE),
    ownerUrl: urlFor(adminUrl, name, OWNER),
    adminUrl: urlFor(adminUrl, name, null),
    close: () =>
      onServer(adminUrl, async (admin) => void (await admin.query(`drop database if exists ${name} with (force)`))),
  }
}

/** The URL of a database on the same server. With a role, the URL is for that role, whose password is its name. */
function urlFor(adminUrl: string, database: string, role: string | null): string {
  const url = new URL(adminUrl)
  url.pathname = `/${database}`
  if (role !== null) {
    url.username = role
    url.password = role
  }
  return url.href
}

/** Whether a process runs. A zombie (state Z) has ended. */
function isRunning(pid: number): boolean {
  if (!existsSync(`/proc/${String(pid)}/stat`)) return false
  return !/\) [ZX] /.test(readFileSync(`/proc/${String(pid)}/stat`, 'utf8'))
}
