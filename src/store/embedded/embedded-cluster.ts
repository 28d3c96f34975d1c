import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, lstat, mkdir, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import type { Random } from '../../lib/random.ts'
import { runCommand } from '../../lib/run-command.ts'
import type { Binaries } from './embedded-binaries.ts'
import { canAccess, chownTo, type ServerUser } from './embedded-user.ts'
import { SOCKET_PORT } from './postmaster.ts'

/**
 * The folders of an embedded server, beneath the data folder. If the path of the socket folder would be too long, that
 * folder is in /tmp.
 */
export type ClusterPaths = {
  /** PostgreSQL's data folder and its log folder. Both belong to PostgreSQL's user. */
  readonly clusterDir: string
  readonly logDir: string
  readonly socketDir: string
}

/**
 * The passwords of the roles: the superuser, the owner of the database (`app`, as data folders of earlier releases name
 * it), and the role that serves requests.
 */
export type Passwords = { readonly admin: string; readonly app: string; readonly server: string }

/** The name of the database, and of the role that owns it. Row-level security applies to the role. */
export const APP_NAME = 'sandyard'
/** The name of the role that serves requests. It owns nothing. */
export const SERVER_ROLE_NAME = 'sandyard_server'
const ADMIN_NAME = 'postgres'

/** The path of a Unix socket has at most 108 bytes, including the final zero (unix(7)). */
const SOCKET_PATH_LIMIT_BYTES = 107
const INITDB_TIMEOUT_MS = 120_000
const CONNECT_TIMEOUT_MS = 10_000

/** Settings for a small machine that also runs sandboxes. An operator may change them in postgresql.conf. */
const INITIAL_SETTINGS: Readonly<Record<string, string>> = {
  max_connections: '100',
  shared_buffers: '128MB',
  fsync: 'on',
  full_page_writes: 'on',
  synchronous_commit: 'on',
  jit: 'off', // compilation takes longer than any query here
  max_parallel_workers_per_gather: '0', // no query here is long, and containers have little /dev/shm
  random_page_cost: '1.1',
  timezone: 'UTC',
  log_timezone: 'UTC',
}

/**
 * Creates the folders of the embedded server with their owners. Rejects if the server's user can't reach the data
 * folder.
 */
export async function createClusterFolders(dataDir: string, user: ServerUser): Promise<ClusterPaths> {
  const home = join(dataDir, 'postgres')
  const logDir = join(home, 'log')
  // The server's user must be able to enter the data folder. Each file in it has permissions of its own.
  if (user.ids.uid !== undefined) await chmod(dataDir, 0o711)
  for (const dir of [home, logDir]) await createPrivateDir(dir, user)
  if (!(await canAccess(user, home))) {
    throw new Error(
      `the user of the embedded PostgreSQL (id ${String(user.uid)}) can't reach ${home}: a folder above ${dataDir} does ` +
        'not let it through, and this process may not mount it elsewhere. Choose a folder beneath /var/lib, or set DATABASE_URL',
    )
  }
  return { clusterDir: join(home, 'data'), logDir, socketDir: await createSocketDir(join(home, 'run'), user) }
}

/**
 * Creates the database cluster if it doesn't exist. An interrupted attempt leaves no cluster. Rejects if another major
 * release created the existing cluster.
 */
export async function createCluster(
  paths: ClusterPaths,
  binaries: Binaries,
  use: { readonly user: ServerUser; readonly passwords: Passwords },
): Promise<void> {
  const { clusterDir } = paths
  if (existsSync(clusterDir)) {
    const made = Number(await readFile(join(clusterDir, 'PG_VERSION'), 'utf8'))
    if (made === binaries.majorVersion) return
    throw new Error(
      `${clusterDir} was created by PostgreSQL ${String(made)}, and this release comes with ${String(binaries.majorVersion)}: ` +
        'with the release that made it, run `sandyard backup FOLDER`; with this one, `sandyard restore FOLDER --data-dir NEW`',
    )
  }
  const draft = `${clusterDir}.new`
  const passwordFile = `${clusterDir}.password`
  await rm(draft, { recursive: true, force: true })
  await writeFile(passwordFile, use.passwords.admin, { mode: 0o600 })
  await chownTo(use.user, passwordFile)
  const settings = Object.entries(INITIAL_SETTINGS).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  await runCommand(
    binaries.initdb,
    [
      '-D',
      draft,
      '-U',
      ADMIN_NAME,
      '-A',
      'scram-sha-256',
      `--pwfile=${passwordFile}`,
      '--encoding=UTF8',
      '--locale=C',
      '--locale-provider=builtin',
      '--builtin-locale=C.UTF-8',
      ...settings,
    ],
    { timeoutMs: INITDB_TIMEOUT_MS, cwd: '/', env: { PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' }, ...use.user.ids },
  )
  await rm(passwordFile)
  await rename(draft, clusterDir)
}

/**
 * Reads the passwords of the roles. Generates and stores those that are missing: all of them at the first start, and that
 * of a newer role at the first start of a newer release. The server's user can't read the file.
 */
export async function loadOrCreatePasswords(dataDir: string, random: Random): Promise<Passwords> {
  const path = join(dataDir, 'postgres-passwords.json')
  const found = existsSync(path) ? parsePasswords(await readFile(path, 'utf8'), path) : null
  if (found === null && existsSync(join(dataDir, 'postgres', 'data'))) {
    throw new Error(
      `${path} is missing, and without it the database beside it can't be opened: restore it from a backup`,
    )
  }
  const generate = (): string => random.bytes(24).toString('base64url')
  const passwords: Passwords = {
    admin: found?.admin ?? generate(),
    app: found?.app ?? generate(),
    server: found?.server ?? generate(),
  }
  if (found?.server !== undefined) return passwords
  await writeFile(`${path}.new`, JSON.stringify(passwords), { mode: 0o600, flush: true })
  await rename(`${path}.new`, path)
  return passwords
}

/**
 * Creates Sandyard's roles and database if they are missing. Nobody but these roles can connect to a database, and the
 * role of the server can't create objects. May be repeated.
 */
export async function createAppDatabase(adminUrl: string, passwords: Passwords): Promise<void> {
  const onAdmin = new Client({ connectionString: adminUrl, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
  const appUrl = new URL(adminUrl)
  appUrl.pathname = `/${APP_NAME}`
  const onApp = new Client({ connectionString: appUrl.href, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
  try {
    await onAdmin.connect()
    await createRole(onAdmin, APP_NAME, passwords.app)
    await createRole(onAdmin, SERVER_ROLE_NAME, passwords.server)
    const database = await onAdmin.query('select from pg_database where datname = $1', [APP_NAME])
    if (database.rowCount === 0) await onAdmin.query(`create database ${APP_NAME} owner ${APP_NAME}`)
    for (const other of [ADMIN_NAME, 'template1'])
      await onAdmin.query(`revoke connect on database ${other} from public`)
    await onAdmin.query(`revoke all on database ${APP_NAME} from public`)
    await onAdmin.query(`grant connect on database ${APP_NAME} to ${SERVER_ROLE_NAME}`)
    await onApp.connect()
    await onApp.query('revoke create on schema public from public')
  } finally {
    await Promise.all([onAdmin.end(), onApp.end()])
  }
}

async function createRole(admin: Client, name: string, password: string): Promise<void> {
  const found = await admin.query('select from pg_roles where rolname = $1', [name])
  if (found.rowCount !== 0) return
  await admin.query(
    `create role ${name} login nosuperuser nobypassrls nocreatedb nocreaterole password ${admin.escapeLiteral(password)}`,
  )
}

/** The connection string of a role, through the server's Unix socket. The superuser's is for the database `postgres`. */
export function connectionUrl(paths: ClusterPaths, passwords: Passwords, role: keyof Passwords): string {
  const user = { admin: ADMIN_NAME, app: APP_NAME, server: SERVER_ROLE_NAME }[role]
  const database = role === 'admin' ? ADMIN_NAME : APP_NAME
  return `postgresql://${user}:${passwords[role]}@localhost:${String(SOCKET_PORT)}/${database}?host=${encodeURIComponent(paths.socketDir)}`
}

/**
 * Creates the folder of the server's Unix socket beneath the data folder. If that path is too long, the folder is in
 * /tmp and must belong to the server's user.
 */
async function createSocketDir(preferred: string, user: ServerUser): Promise<string> {
  const socket = join(preferred, `.s.PGSQL.${String(SOCKET_PORT)}`)
  const isShort = Buffer.byteLength(socket) <= SOCKET_PATH_LIMIT_BYTES
  const digest = createHash('sha256').update(preferred).digest('hex').slice(0, 16)
  const dir = isShort ? preferred : join(await realpath('/tmp'), `sandyard-${digest}`)
  await createPrivateDir(dir, user)
  return dir
}

async function createPrivateDir(dir: string, user: ServerUser): Promise<void> {
  if ((await mkdir(dir, { recursive: true, mode: 0o700 })) !== undefined) await chownTo(user, dir)
  const found = await lstat(dir)
  if (!found.isDirectory() || found.uid !== user.uid) {
    throw new Error(`${dir} must be a folder that belongs to the user with the id ${String(user.uid)}`)
  }
  if ((found.mode & 0o077) !== 0) await chmod(dir, 0o700)
}

/** Parses the file. Data folders of earlier releases have no password for the role that serves requests. */
function parsePasswords(text: string, path: string): Omit<Passwords, 'server'> & Partial<Passwords> {
  const parsed: unknown = JSON.parse(text)
  if (typeof parsed === 'object' && parsed !== null && 'admin' in parsed && 'app' in parsed) {
    const { admin, app } = parsed
    const server = 'server' in parsed ? parsed.server : undefined
    if (typeof admin === 'string' && typeof app === 'string')
      return typeof server === 'string' ? { admin, app, server } : { admin, app }
  }
  throw new Error(`${path} does not contain the passwords of the embedded PostgreSQL`)
}
