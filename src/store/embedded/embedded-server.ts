import { existsSync } from 'node:fs'
import { mkdir, realpath, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Random } from '../../lib/random.ts'
import { freeBallastIfFull, openBallast } from './ballast.ts'
import { DataFolderInUse, lockDataFolder } from './data-lock.ts'
import { locateBinaries } from './embedded-binaries.ts'
import {
  loadOrCreatePasswords,
  createAppDatabase,
  createCluster,
  createClusterFolders,
  connectionUrl,
} from './embedded-cluster.ts'
import { findServerUser } from './embedded-user.ts'
import { explainFullDisk } from './full-disk.ts'
import { startPostmaster, stopOrphans, type Postmaster, type PostmasterOptions } from './postmaster.ts'

/** The PostgreSQL server that comes with Sandyard, while it runs. */
export interface EmbeddedServer {
  /** The connection string of the role that serves requests. It owns nothing, and row-level security applies to it. */
  readonly connectionString: string
  /** The connection string of the role that owns the database and applies migrations. */
  readonly ownerConnectionString: string
  /** The connection string of the server's superuser, for backups and repairs. */
  readonly adminConnectionString: string
  /** The id of the server's current process. It changes when the server is restarted after a crash. */
  pid(): number
  /** Whether its file system is full, so that only deletions may still succeed. */
  isDiskFull(): boolean
  /** Shuts the server down cleanly (about 0.1 s when idle) and unlocks the data folder. May be repeated. */
  stop(): Promise<void>
}

export type EmbeddedOptions = {
  /** Sandyard's data folder. It is created if it is missing. */
  readonly dataDir: string
  readonly log: Log
  readonly clock: Clock
  readonly random: Random
  /** The size of the ballast; see `openBallast`. Absent: none. */
  readonly ballastMib?: number | null
  /** Settings of PostgreSQL for this start only, such as `{ fsync: 'off' }` in a test. */
  readonly settings?: Readonly<Record<string, string>>
  /** The npm package with PostgreSQL's programs. Absent: the one that this release comes with. */
  readonly npmPackage?: string
}

/**
 * The pause before a crashed server is restarted. It doubles after each failed restart, from the first value to the
 * last.
 */
const FIRST_RESTART_PAUSE_MS = 100
const LAST_RESTART_PAUSE_MS = 5_000

/** If the server crashes after running this long, the restarts begin with the first pause again. */
const STEADY_AFTER_MS = 60_000

/**
 * Starts the embedded PostgreSQL on a data folder. The first start creates the cluster, the roles and the database;
 * docs/decisions/0002-postgresql.md says how long that takes. Later starts recover from any crash of the previous
 * process. The server listens on a Unix socket only. If the server crashes, it is restarted; connections break, and
 * connection pools open new ones. Rejects with `DataFolderInUse` if another process uses the folder.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<EmbeddedServer> {
  const { log } = options
  await mkdir(options.dataDir, { recursive: true, mode: 0o700 })
  const dataDir = await realpath(options.dataDir)
  freeBallastIfFull({ dir: dataDir, log })
  try {
    return await startIn(dataDir, options)
  } catch (error) {
    throw error instanceof DataFolderInUse ? error : explainFullDisk(error, dataDir)
  }
}

async function startIn(dataDir: string, options: EmbeddedOptions): Promise<EmbeddedServer> {
  const { clock, log } = options
  const lock = lockDataFolder(dataDir)
  try {
    const user = await findServerUser()
    const paths = await createClusterFolders(dataDir, user)
    const binaries = await locateBinaries(user, join(dataDir, 'postgres'), log, options.npmPackage)
    const passwords = await loadOrCreatePasswords(dataDir, options.random)
    await createCluster(paths, binaries, { user, passwords })
    const postmasterOptions: PostmasterOptions = {
      postgres: binaries.postgres,
      clusterDir: paths.clusterDir,
      settings: { ...requiredSettings(paths), ...options.settings },
      logDir: paths.logDir,
      socketDir: paths.socketDir,
      user,
      clock,
      log,
    }
    const ballast = openBallast({
      ...options,
      dir: dataDir,
      sizeMib: options.ballastMib === undefined ? 0 : options.ballastMib,
    })
    await stopOrphans(postmasterOptions)
    const first = await startPostmaster(postmasterOptions)
    const kept = superviseServer(first, postmasterOptions)
    const urls = {
      connectionString: connectionUrl(paths, passwords, 'server'),
      ownerConnectionString: connectionUrl(paths, passwords, 'app'),
      adminConnectionString: connectionUrl(paths, passwords, 'admin'),
    }
    try {
      await createAppDatabase(urls.adminConnectionString, passwords)
    } catch (error) {
      await kept.stop()
      throw error
    }
    ballast.start()
    let stopping: Promise<void> | null = null
    const stopAndFree = async (): Promise<void> => {
      try {
        await ballast.close()
        await kept.stop()
        if (!paths.socketDir.startsWith(dataDir)) await rm(paths.socketDir, { recursive: true, force: true })
      } finally {
        lock[Symbol.dispose]()
      }
    }
    return {
      ...urls,
      pid: () => kept.pid(),
      isDiskFull: () => ballast.isFull(),
      stop: () => (stopping ??= stopAndFree()),
    }
  } catch (error) {
    lock[Symbol.dispose]()
    throw error
  }
}

/** Stops the server that a killed process left running on a data folder. Call it while no process uses the folder. */
export async function stopLeftServer({
  dataDir,
  clock,
  log,
}: Pick<EmbeddedOptions, 'dataDir' | 'clock' | 'log'>): Promise<void> {
  const home = join(dataDir, 'postgres')
  const clusterDir = join(home, 'data')
  if (!existsSync(clusterDir)) return
  using _lock = lockDataFolder(dataDir)
  await stopOrphans({ clusterDir, socketDir: join(home, 'run'), clock, log })
}

/** Settings that apply to every start. They override the cluster's own configuration file. */
function requiredSettings(paths: {
  readonly logDir: string
  readonly socketDir: string
}): Readonly<Record<string, string>> {
  return {
    listen_addresses: '',
    unix_socket_directories: paths.socketDir,
    unix_socket_permissions: '0700',
    logging_collector: 'on',
    log_directory: paths.logDir,
    log_filename: 'postgresql-%a.log', // one file for each weekday, overwritten a week later
    log_truncate_on_rotation: 'on',
    log_rotation_age: '1d',
    log_rotation_size: '0',
  }
}

/** Restarts the server whenever its process ends before `stop` is called. */
function superviseServer(first: Postmaster, options: PostmasterOptions): { pid(): number; stop(): Promise<void> } {
  const { clock, log } = options
  const stopped = new AbortController()
  let current = first

  async function startAgain(pauseMs: number): Promise<void> {
    await clock.sleep(pauseMs, stopped.signal)
    await stopOrphans(options)
    const next = await startPostmaster(options)
    if (stopped.signal.aborted) {
      await next.stop()
      throw new Error('PostgreSQL was restarted after it was asked to stop')
    }
    current = next
    log.info({ postgres_pid: next.pid }, 'PostgreSQL is running again')
  }

  async function watch(): Promise<void> {
    let pauseMs = FIRST_RESTART_PAUSE_MS
    for (;;) {
      const sinceMs = clock.monotonicMs()
      const how = await current.exited
      if (stopped.signal.aborted) return
      log.error({ postgres_pid: current.pid, how }, 'PostgreSQL ended and is restarted')
      if (clock.monotonicMs() - sinceMs > STEADY_AFTER_MS) pauseMs = FIRST_RESTART_PAUSE_MS
      for (let isUp = false; !isUp; pauseMs = Math.min(pauseMs * 2, LAST_RESTART_PAUSE_MS)) {
        try {
          await startAgain(pauseMs)
          isUp = true
        } catch (error) {
          if (stopped.signal.aborted) return
          log.error({ error }, 'PostgreSQL could not be restarted')
        }
      }
    }
  }

  const watching = watch()
  return {
    pid: () => current.pid,
    async stop() {
      stopped.abort(new Error('PostgreSQL is being stopped'))
      await current.stop()
      await watching
    },
  }
}
