import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { readdir, readFile, readlink, realpath, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { ServerUser } from './embedded-user.ts'

/** A running PostgreSQL server, our child. */
export interface Postmaster {
  readonly pid: number
  /** Resolves when it ended, with how it ended in words. */
  readonly exited: Promise<string>
  /** Ends it: sessions are cut, a checkpoint is written. Past its limits without the checkpoint, which costs a recovery at the next start. */
  stop(): Promise<void>
}

export type PostmasterOptions = {
  readonly postgres: string
  readonly clusterDir: string
  /** Settings for the command line; they come before those in the cluster's own file. */
  readonly settings: Readonly<Record<string, string>>
  /** Where its first words go, before its own log file is open. */
  readonly startLogPath: string
  readonly user: ServerUser
  readonly clock: Clock
  readonly log: Log
}

/** After a crash the server replays its log before it is ready: at most `max_wal_size` (1 GiB) of it, minutes on a slow disk. */
const START_LIMIT_MS = 600_000
const POLL_MS = 20
/** Fast shutdown writes a checkpoint; immediate shutdown writes nothing. */
const FAST_STOP_LIMIT_MS = 30_000
const IMMEDIATE_STOP_LIMIT_MS = 5_000
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
      const words = (await readFile(options.startLogPath, 'utf8')).trim().slice(-LAST_WORDS_CHARS)
      throw new Error(`PostgreSQL did not start (${String(ended)}): ${words}`)
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
 * killed. Nothing else is touched: a process counts only when it is a `postgres` that works in this directory.
 */
export async function stopOrphans(clusterDir: string, clock: Clock, log: Log): Promise<void> {
  const leader = await readPostmasterPid(clusterDir)
  const orphans = await findServerProcesses(clusterDir)
  const isLeft = async (pid: number): Promise<boolean> => (await findServerProcesses(clusterDir)).includes(pid)
  if (leader !== null && orphans.includes(leader)) {
    log.warn({ pid: leader }, 'a PostgreSQL that an earlier process left running is stopped')
    await endProcess({ pid: leader, isGone: async () => !(await isLeft(leader)), clock, log })
  }
  for (const pid of await findServerProcesses(clusterDir)) {
    log.warn({ pid }, 'a session of a PostgreSQL that was killed is stopped')
    await endProcess({ pid, isGone: async () => !(await isLeft(pid)), clock, log })
  }
  // Nobody works here now. A pid file that stayed could name a stranger by a reused number, and PostgreSQL would refuse.
  await rm(join(clusterDir, 'postmaster.pid'), { force: true })
}

function spawnPostmaster(options: PostmasterOptions): ChildProcess {
  const settings = Object.entries(options.settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const out = openSync(options.startLogPath, 'w', 0o600)
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

async function readPostmasterPid(clusterDir: string): Promise<number | null> {
  const pid = Number((await readPidFile(clusterDir))[0])
  return Number.isSafeInteger(pid) && pid > 1 ? pid : null
}

async function readPidFile(clusterDir: string): Promise<readonly string[]> {
  try {
    return (await readFile(join(clusterDir, 'postmaster.pid'), 'utf8')).split('\n')
  } catch (error) {
    if (isMissing(error)) return []
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
    if (isMissing(error)) return false
    throw error
  }
}

/** A file or process that isn't there any more, or a process of somebody else. */
function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && MISSING_CODES.has(String(error.code))
}
const MISSING_CODES: ReadonlySet<string> = new Set(['ENOENT', 'ESRCH', 'EACCES', 'EPERM'])

type Ending = {
  readonly pid: number
  readonly isGone: () => Promise<boolean>
  readonly clock: Clock
  readonly log: Log
}

async function endProcess({ pid, isGone, clock, log }: Ending): Promise<void> {
  const steps = [
    { signal: 'SIGINT', limitMs: FAST_STOP_LIMIT_MS },
    { signal: 'SIGQUIT', limitMs: IMMEDIATE_STOP_LIMIT_MS },
    { signal: 'SIGKILL', limitMs: IMMEDIATE_STOP_LIMIT_MS },
  ] as const
  for (const { signal, limitMs } of steps) {
    const startedMs = clock.monotonicMs()
    if (await isGone()) return
    if (signal !== 'SIGINT') log.warn({ pid, signal }, 'PostgreSQL does not stop in time; it is told again')
    tell(pid, signal)
    while (clock.monotonicMs() - startedMs < limitMs) {
      if (await isGone()) return
      await clock.sleep(POLL_MS)
    }
  }
  throw new Error(`the PostgreSQL process ${String(pid)} can't be ended`)
}

/** A process that ended in the meantime needs no signal. */
function tell(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!isMissing(error)) throw error
  }
}
