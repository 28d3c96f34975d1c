import { spawn, type ChildProcess } from 'node:child_process'
import type { Stats } from 'node:fs'
import { readdir, readFile, readlink, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import type { ServerUser } from './embedded-user.ts'
import { describeFailedStart, openStartOutput } from './start-output.ts'

/** A running PostgreSQL server, a child of this process. */
export interface Postmaster {
  readonly pid: number
  /** Resolves when the server has ended. The text describes how it ended. */
  readonly exited: Promise<string>
  /**
   * Stops the server: closes its sessions and writes a checkpoint. If that takes too long, the server is killed, and
   * its next start must recover.
   */
  stop(): Promise<void>
}

/** The folders in which a server of an earlier process may still be running. */
export type OrphanOptions = {
  readonly clusterDir: string
  /** The folder of the server's socket and of the socket's lock file. */
  readonly socketDir: string
  readonly clock: Clock
  readonly log: Log
}

/** The options for starting a server. */
export type PostmasterOptions = OrphanOptions & {
  readonly postgres: string
  /** Settings for the server's command line. They override the cluster's own configuration file. */
  readonly settings: Readonly<Record<string, string>>
  /** The folder of the server's log files. */
  readonly logDir: string
  readonly user: ServerUser
}

/** A part of the socket's file name only: the server doesn't listen on TCP. */
export const SOCKET_PORT = 5432

/** After a crash the server replays at most `max_wal_size` (1 GiB) of its log before it is ready: minutes on a slow disk. */
const START_LIMIT_MS = 600_000
const POLL_MS = 20
/** Starts the server and waits until it is ready. If the server ends before that, rejects with the end of its log. */
export async function startPostmaster(options: PostmasterOptions): Promise<Postmaster> {
  const { clock, clusterDir, logDir } = options
  const startedAt = clock.now()
  const output = openStartOutput(logDir)
  using _closing = { [Symbol.dispose]: () => output.close() }
  const child = spawnPostmaster(options, output.fd)
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => {
      resolve(error.message)
    })
    child.once('exit', (code, signal) => {
      resolve(signal === null ? `exit code ${String(code)}` : `signal ${signal}`)
    })
  })
  let ended: string | null = null
  const watching = exited.then((how) => {
    ended = how
  })
  for (const startedMs = clock.monotonicMs(); !(await isReady(clusterDir, child.pid));) {
    await Promise.race([clock.sleep(POLL_MS), watching])
    if (ended !== null) {
      const failed = { how: String(ended), output: output.read(), logDir, startedAt }
      throw new Error(await describeFailedStart(failed))
    }
    if (clock.monotonicMs() - startedMs > START_LIMIT_MS) {
      child.kill('SIGQUIT')
      throw new Error(
        `PostgreSQL was not ready after ${String(START_LIMIT_MS / 1000)} s; see the log beside ${clusterDir}`,
      )
    }
  }
  const { pid } = child
  if (pid === undefined) throw new Error('PostgreSQL has no process id')
  return {
    pid,
    exited,
    stop: () => endProcess({ pid, isGone: async () => Promise.resolve(ended !== null), clock, log: options.log }),
  }
}

/**
 * Stops the server that an earlier process left running on this cluster, or the remaining sessions of a killed server.
 * Affects only `postgres` processes whose working directory is this cluster. Call it only as the owner of the data
 * folder.
 */
export async function stopOrphans(options: OrphanOptions): Promise<void> {
  const { clusterDir, clock, log } = options
  const isGone = async (pid: number): Promise<boolean> => !(await findServerProcesses(clusterDir)).includes(pid)
  const leader = await readPostmasterPid(clusterDir)
  if (leader !== null && !(await isGone(leader))) {
    log.warn({ postgres_pid: leader }, 'a PostgreSQL server that an earlier process left running is stopped')
    await endProcess({ pid: leader, isGone: () => isGone(leader), clock, log })
  }
  for (const pid of await findServerProcesses(clusterDir)) {
    log.warn({ postgres_pid: pid }, 'a session of a killed PostgreSQL server is stopped')
    // SIGINT is left out, because a session only cancels its query.
    await endProcess({ pid, isGone: () => isGone(pid), clock, log, steps: STOP_STEPS.slice(1) })
  }
  // No server runs now, so delete the lock files of a killed server. They would prevent the next start if their process
  // id is in use again or belongs to a zombie. Zombies remain in a container whose first process doesn't reap its
  // children.
  await rm(join(clusterDir, 'postmaster.pid'), { force: true })
  await rm(join(options.socketDir, `.s.PGSQL.${String(SOCKET_PORT)}.lock`), { force: true })
}

function spawnPostmaster(options: PostmasterOptions, out: number): ChildProcess {
  const settings = Object.entries(options.settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const child = spawn(options.postgres, ['-D', options.clusterDir, ...settings], {
    cwd: options.clusterDir,
    detached: true, // Ctrl-C must reach only Sandyard, which then stops the server
    stdio: ['ignore', out, out],
    env: { PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' },
    ...options.user.ids,
  })
  child.unref()
  return child
}

/**
 * Whether the server is ready. As in pg_ctl, line 8 of postmaster.pid is its state (src/include/utils/pidfile.h of
 * PostgreSQL).
 */
async function isReady(clusterDir: string, pid: number | undefined): Promise<boolean> {
  const lines = await readPidFile(clusterDir)
  return Number(lines[0]) === pid && lines[7]?.trim() === 'ready'
}

async function readPostmasterPid(clusterDir: string): Promise<number | null> {
  const pid = Number((await readPidFile(clusterDir))[0])
  return Number.isSafeInteger(pid) && pid > 1 ? pid : null
}

async function readPidFile(clusterDir: string): Promise<readonly string[]> {
  try {
    return (await readFile(join(clusterDir, 'postmaster.pid'), 'utf8')).split('\n')
  } catch (error) {
    if (isGoneError(error)) return []
    throw error
  }
}

async function findServerProcesses(clusterDir: string): Promise<readonly number[]> {
  const home = await stat(clusterDir)
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  const found = await Promise.all(pids.map((pid) => isServerProcess(pid, home)))
  return pids.filter((_, index) => found[index] === true).map(Number)
}

/** Whether a process is a server in a folder, by whatever path it was started: a data folder may move. */
async function isServerProcess(pid: string, home: Stats): Promise<boolean> {
  try {
    const { ino, dev } = await stat(`/proc/${pid}/cwd`)
    if (ino !== home.ino || dev !== home.dev) return false
    return /\/postgres( \(deleted\))?$/.test(await readlink(`/proc/${pid}/exe`))
  } catch (error) {
    if (isGoneError(error)) return false
    throw error
  }
}

/** Whether an error means that a file or process no longer exists, or that a process belongs to another user. */
function isGoneError(error: unknown): boolean {
  return hasErrorCode(error, 'ENOENT', 'ESRCH', 'EACCES', 'EPERM')
}

/**
 * The signals that stop a server, in order. PostgreSQL's fast shutdown (SIGINT) writes a checkpoint. Its immediate
 * shutdown (SIGQUIT) writes none, so the next start must recover.
 */
const STOP_STEPS = [
  { signal: 'SIGINT', limitMs: 30_000 },
  { signal: 'SIGQUIT', limitMs: 5_000 },
  { signal: 'SIGKILL', limitMs: 5_000 },
] as const

type Ending = {
  readonly pid: number
  readonly isGone: () => Promise<boolean>
  readonly clock: Clock
  readonly log: Log
  readonly steps?: readonly (typeof STOP_STEPS)[number][]
}

async function endProcess({ pid, isGone, clock, log, steps = STOP_STEPS }: Ending): Promise<void> {
  for (const { signal, limitMs } of steps) {
    const startedMs = clock.monotonicMs()
    if (await isGone()) return
    if (signal !== steps[0]?.signal)
      log.warn({ postgres_pid: pid, signal }, 'PostgreSQL does not stop in time and gets the next signal')
    sendSignal(pid, signal)
    while (clock.monotonicMs() - startedMs < limitMs) {
      if (await isGone()) return
      await clock.sleep(POLL_MS)
    }
  }
  throw new Error(`the PostgreSQL process ${String(pid)} can't be stopped`)
}

/** Sends a signal to a process. Does nothing if the process has ended meanwhile. */
function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!isGoneError(error)) throw error
  }
}
