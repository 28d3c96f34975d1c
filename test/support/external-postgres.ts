import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import {
  APP_NAME,
  SERVER_ROLE_NAME,
  loadOrCreatePasswords,
  createAppDatabase,
  createCluster,
  createClusterFolders,
} from '../../src/store/embedded/embedded-cluster.ts'
import { locateBinaries } from '../../src/store/embedded/embedded-binaries.ts'
import { findServerUser } from '../../src/store/embedded/embedded-user.ts'
import { startPostmaster, type Postmaster } from '../../src/store/embedded/postmaster.ts'
import { freePort } from './free-port.ts'
import { childrenOf, isRunning, sendSignal, readCommandLine } from './process-tree.ts'

/** A PostgreSQL outside of the program. It listens on TCP and syncs to its disk, and only the test restarts it. */
export type ExternalPostgres = {
  /** The value for `DATABASE_URL`, for the role that serves requests. It has no rights until the owner has migrated. */
  readonly url: string
  /** The value for `DATABASE_OWNER_URL`. As the only URL, its role owns the tables and serves. */
  readonly ownerUrl: string
  /** The URL of the superuser, for the same database. */
  readonly adminUrl: string
  readonly port: number
  pid(): number
  start(settings?: Readonly<Record<string, string>>): Promise<void>
  /**
   * Ends the server. SIGTERM waits for clients (smart), SIGINT disconnects them (fast), SIGQUIT also skips the
   * checkpoint (immediate).
   */
  end(signal: 'SIGTERM' | 'SIGINT' | 'SIGQUIT' | 'SIGKILL'): Promise<void>
  close(): Promise<void>
}

export type ExternalOptions = {
  readonly settings?: Readonly<Record<string, string>>
  /** The folder for the cluster; by default a new one in /tmp. */
  readonly dataDir?: string
}

/** Creates a cluster with the binaries of the embedded server and starts it. Always close it. */
export async function startExternalPostgres(options: ExternalOptions = {}): Promise<ExternalPostgres> {
  const dataDir = options.dataDir ?? (await mkdtemp('/tmp/sandyard-external-'))
  await mkdir(dataDir, { recursive: true })
  const log = makeLog('silent')
  const user = await findServerUser()
  const paths = await createClusterFolders(dataDir, user)
  const binaries = await locateBinaries(user, join(dataDir, 'postgres'), log)
  const passwords = await loadOrCreatePasswords(dataDir, systemRandom)
  await createCluster(paths, binaries, { user, passwords })
  const port = await freePort()
  const urlOf = (role: string, password: string, database: string): string =>
    `postgresql://${role}:${password}@127.0.0.1:${String(port)}/${database}`
  let running: Postmaster | null = null
  const external: ExternalPostgres = {
    url: urlOf(SERVER_ROLE_NAME, passwords.server, APP_NAME),
    ownerUrl: urlOf(APP_NAME, passwords.app, APP_NAME),
    adminUrl: urlOf('postgres', passwords.admin, APP_NAME),
    port,
    pid: () => running?.pid ?? 0,
    async start(settings = {}) {
      running = await startPostmaster({
        postgres: binaries.postgres,
        clusterDir: paths.clusterDir,
        settings: {
          port: String(port),
          listen_addresses: '127.0.0.1',
          unix_socket_directories: paths.socketDir,
          ...options.settings,
          ...settings,
        },
        logDir: paths.logDir,
        socketDir: paths.socketDir,
        user,
        clock: systemClock,
        log,
      })
    },
    async end(signal) {
      if (running === null) return
      const ended = running
      const sessions = childrenOf(ended.pid)
      sendSignal(ended.pid, signal)
      await ended.exited
      // Sessions outlive a killed postmaster until they notice its death.
      for (const pid of sessions) while (isRunning(pid)) await systemClock.sleep(10)
      running = null
    },
    async close() {
      if (running !== null) {
        for (const pid of [running.pid, ...childrenOf(running.pid)]) sendSignal(pid, 'SIGCONT')
        await external.end('SIGQUIT')
      }
      await rm(options.dataDir === undefined ? dataDir : join(dataDir, 'postgres'), { recursive: true, force: true })
    },
  }
  try {
    await external.start()
    await createAppDatabase(urlOf('postgres', passwords.admin, 'postgres'), passwords)
    return external
  } catch (error) {
    await external.close()
    throw error
  }
}

/** Finds the sessions that serve clients, by the titles that PostgreSQL gives its processes. */
export function sessionsOf(pid: number): readonly number[] {
  return childrenOf(pid).filter((child) => readCommandLine(child).includes(`postgres: ${SERVER_ROLE_NAME} `))
}
