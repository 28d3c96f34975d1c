import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { readdir, readFile, readlink, realpath, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { ServerUser } from './embedded-user.ts'

/** A running PostgreSQL server, our child. */
export interface Postmaster {
  readonly pid: number
  /** Resolves when it ended, with how it ended in words. */
  readonly exited: Promise<string>
  /** Ends it: sessions are cut, a checkpoint is written. Past its limits without the checkpoint, which costs a recovery at the next start. */
  stop(): Promise<void>
}

/** Where an earlier server may be left. */
export type OrphanOptions = {
  readonly clusterDir: string
  /** Where its socket is, and beside it a lock file of the socket's own. */
  readonly socketDir: string
  readonly clock: Clock
  readonly log: Log
}

/** How a server is started. */
export type PostmasterOptions = OrphanOptions & {
  readonly postgres: string
  /** Settings for the command line; they come before those in the cluster's own file. */
  readonly settings: Readonly<Record<string, string>>
  /** Where its own log files are; its first words, before it opens one, go to `start.log` there. */
  readonly logDir: string
  readonly user: ServerUser
}

/** There is no TCP; the number is only a part of the socket's name. */
export const SOCKET_PORT = 5432

/** After a crash the server replays its log before it is ready: at most `max_wal_size` (1 GiB) of it, minutes on a slow disk. */
const START_LIMIT_MS = 600_000
const POLL_MS = 20
/** How much of its first words an error carries. */
const LAST_WORDS_CHARS = 1_500

/** Starts the server and waits until it is ready. Rejects, with its last words, when it ends before. */
export async function startPostmaster(options: PostmasterOptions): Promise<Postmaster> {
  const { clock, clusterDir } = options
  const child = spawnPostmaster(options)
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
      throw new Error(`PostgreSQL did not start (${String(ended)}): ${await readLogTail(options.logDir)}`)
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
 * Ends what an earlier process left on this cluster when it died: its server, or the last sessions of a server that was
 * killed. Nothing else is touched: a process counts only when it is a `postgres` that works in this directory. To be
 * called only by the owner of the data folder.
 */
export async function stopOrphans(options: OrphanOptions): Promise<void> {
  const { clusterDir, clock, log } = options
  const isGone = async (pid: number): Promise<boolean> => !(await findServerProcesses(clusterDir)).includes(pid)
  const leader = await readPostmasterPid(clusterDir)
  if (leader !== null && !(await isGone(leader))) {
    log.warn({ pid: leader }, 'a PostgreSQL that an earlier process left running is stopped')
    await endProcess({ pid: leader, isGone: () => isGone(leader), clock, log })
  }
  for (const pid of await findServerProcesses(clusterDir)) {
    log.warn({ pid }, 'a session of a PostgreSQL that was killed is stopped')
    await endProcess({ pid, isGone: () => isGone(pid), clock, log, steps: STOP_STEPS.slice(1) }) // SIGINT only cancels a query
  }
  // Nobody works here now. The lock files that a killed server left would keep the next one from starting, if their
  // process id is in use again or is a zombie that nobody waited for (a container whose first process doesn't).
  await rm(join(clusterDir, 'postmaster.pid'), { force: true })
  await rm(join(options.socketDir, `.s.PGSQL.${String(SOCKET_PORT)}.lock`), { force: true })
}

function spawnPostmaster(options: PostmasterOptions): ChildProcess {
  const settings = Object.entries(options.settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const out = openSync(join(options.logDir, 'start.log'), 'w', 0o600)
  try {
    const child = spawn(options.postgres, ['-D', options.clusterDir, ...settings], {
      cwd: options.clusterDir,
      detached: true, // a Ctrl-C in the terminal is for this program, which then stops the server in order
      stdio: ['ignore', out, out],
      env: { PATH: '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' },
      ...options.user.ids,
    })
    child.unref()
    return child
  } finally {
    closeSync(out)
  }
}

/** As pg_ctl does: line 8 of postmaster.pid holds the state (src/include/utils/pidfile.h). */
async function isReady(clusterDir: string, pid: number | undefined): Promise<boolean> {
  const lines = await readPidFile(clusterDir)
  return Number(lines[0]) === pid && lines[7]?.trim() === 'ready'
}

/** The end of the log file that was written last. */
async function readLogTail(logDir: string): Promise<string> {
  const paths = (await readdir(logDir)).map((name) => join(logDir, name))
  const files = await Promise.all(paths.map(async (path) => ({ path, writtenMs: (await stat(path)).mtimeMs })))
  const newest = files.reduce((one, other) => (other.writtenMs >= one.writtenMs ? other : one), {
    path: '',
    writtenMs: -1,
  })
  return newest.path === '' ? 'it said nothing' : (await readFile(newest.path, 'utf8')).trim().slice(-LAST_WORDS_CHARS)
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
  const home = await realpath(clusterDir)
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  const found = await Promise.all(pids.map((pid) => isServerProcess(pid, home)))
  return pids.filter((_, index) => found[index] === true).map(Number)
}

async function isServerProcess(pid: string, home: string): Promise<boolean> {
  try {
    if ((await readlink(`/proc/${pid}/cwd`)) !== home) return false
    return /\/postgres( \(deleted\))?$/.test(await readlink(`/proc/${pid}/exe`))
  } catch (error) {
    if (isGoneError(error)) return false
    throw error
  }
}

/** A file or process that isn't there any more, or a process of somebody else. */
function isGoneError(error: unknown): boolean {
  return error instanceof Error && 'code' in error && MISSING_CODES.has(String(error.code))
}
const MISSING_CODES: ReadonlySet<string> = new Set(['ENOENT', 'ESRCH', 'EACCES', 'EPERM'])

/** Fast shutdown writes a checkpoint; immediate shutdown writes nothing, and costs a recovery (PostgreSQL documentation, 18.5). */
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
    if (signal !== steps[0]?.signal) log.warn({ pid, signal }, 'PostgreSQL does not stop in time; it is told again')
    sendSignal(pid, signal)
    while (clock.monotonicMs() - startedMs < limitMs) {
      if (await isGone()) return
      await clock.sleep(POLL_MS)
    }
  }
  throw new Error(`the PostgreSQL process ${String(pid)} can't be ended`)
}

/** A process that ended in the meantime needs no signal. */
function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!isGoneError(error)) throw error
  }
}
