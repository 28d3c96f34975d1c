import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { systemClock } from '../../src/lib/clock.ts'
import { readFileSyncOrNull } from '../../src/lib/files.ts'
import { findLeftovers } from './leftovers.ts'
import { whyNoOci } from './oci-driver.ts'
import { TEST_REGISTRIES } from './outbound-http.ts'
import { PROGRAM, PROGRAM_ENV } from './program-file.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { isRunning } from './process-tree.ts'
import { waitUntil } from './wait.ts'

/**
 * The time limit of a start. A first start creates the database cluster and the demo image. Measured: 3 s (2026-11),
 * longer on a busy machine.
 */
const READY_LIMIT_MS = 60_000
/** The most warm sandboxes of a server under test. */
export const TEST_WARM = 2
const STOP_LIMIT_MS = 30_000

/** `sandyard up` as a process with real sandboxes. Its data folder is deleted when it is closed. */
export type RealServer = {
  /** The URL, which stays the same after a restart. */
  readonly url: string
  readonly key: string
  readonly dataDir: string
  /** The variables that the public client needs, with a home folder of its own. */
  readonly clientEnv: Readonly<Record<string, string>>
  /** The id of the current process. */
  pid(): number
  /** The output of all processes of this server so far: standard output and logs. */
  output(): string
  /**
   * Stops the server with SIGTERM. Its sandboxes stop too, unless the setting SANDYARD_SHUTDOWN is `keep`. Resolves
   * with the duration in milliseconds.
   */
  stop(): Promise<number>
  /** Kills the server and its PostgreSQL with SIGKILL, as a power cut would. */
  kill9(): Promise<void>
  /** Starts the server again on the same folder and waits until it is ready. */
  start(env?: Readonly<Record<string, string>>): Promise<void>
  /** Stops the server, asserts that it left nothing behind on the machine, and deletes its folder. */
  close(): Promise<void>
}

/** Returns the reason why no server with real sandboxes can run here, or false. For `{ skip }`. */
export function whyNoServer(): string | false {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const lacksFilter = !['/usr/sbin', '/sbin', ...folders].some((folder) => existsSync(join(folder, 'nft')))
  return whyNoOci() ?? (lacksFilter ? 'nft is not installed' : false)
}

/** Starts a server with these settings and waits until it is ready. Always close it. */
export async function startServer(env: Readonly<Record<string, string>> = {}): Promise<RealServer> {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-e2e-'))
  chmodSync(root, 0o711) // the unprivileged users to which sandboxes' users are mapped must be able to pass through
  const dataDir = env['SANDYARD_DATA_DIR'] ?? join(root, 'data')
  const home = join(root, 'home')
  mkdirSync(home)
  const key = 'test-key-of-the-first-organization'
  const settings = {
    SANDYARD_DATA_DIR: dataDir,
    SANDYARD_API_KEY: key,
    SANDYARD_READY_AHEAD: '1',
    SANDYARD_WARM: String(TEST_WARM),
    SANDYARD_REGISTRIES_ALLOWED: TEST_REGISTRIES,
    SANDYARD_SHUTDOWN: 'stop',
    SANDYARD_LOG_LEVEL: 'info',
    ...env,
  }
  let said = ''
  let child: ChildProcess | null = null
  let url = ''

  async function start(more: Readonly<Record<string, string>> = {}): Promise<void> {
    const port = url === '' ? '0' : new URL(url).port
    const from = said.length
    const started = spawnProgram(['up'], { SANDYARD_PORT: port, ...settings, ...more })
    child = started
    for (const stream of [started.stdout, started.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        said += text
      })
    }
    url = await waitUntil(() => {
      assert.equal(started.exitCode, null, `the server ended:\n${said.slice(from)}`)
      return /ready on (\S+)/.exec(said.slice(from))?.[1]
    }, READY_LIMIT_MS)
    for (const deadlineMs = systemClock.monotonicMs() + READY_LIMIT_MS * TIMEOUT_FACTOR; ;) {
      const { status } = await fetch(`${url}/readyz`)
      if (status === 200) return
      assert.ok(systemClock.monotonicMs() < deadlineMs, `not ready:\n${said.slice(from)}`)
      await systemClock.sleep(20)
    }
  }

  async function stop(): Promise<number> {
    const from = systemClock.monotonicMs()
    if (child !== null) await endProcess(child, 'SIGTERM')
    return systemClock.monotonicMs() - from
  }

  const server: RealServer = {
    get url() {
      return url
    },
    key,
    dataDir,
    get clientEnv() {
      return { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: key, HOME: home }
    },
    pid: () => child?.pid ?? 0,
    output: () => said,
    start,
    stop,
    async kill9() {
      const postmaster = readPostmasterPid(dataDir)
      if (child !== null) await endProcess(child, 'SIGKILL')
      if (postmaster !== null && isRunning(postmaster)) {
        process.kill(postmaster, 'SIGKILL')
        await waitUntil(() => !isRunning(postmaster))
      }
    },
    async close() {
      try {
        await stop()
      } catch (error) {
        if (child !== null) await endProcess(child, 'SIGKILL')
        throw new Error(`the server did not stop; it said:\n${said.slice(-4000)}`, { cause: error })
      }
      const left = existsSync(join(dataDir, 'name-prefix')) ? await findLeftovers(dataDir) : []
      rmSync(root, { recursive: true, force: true })
      assert.deepEqual(left, [], `a stopped server left something behind; it said:\n${said.slice(-4000)}`)
    },
  }
  try {
    await start()
    return server
  } catch (error) {
    await server.close()
    throw error
  }
}

/**
 * Starts the program with these settings, optionally in a network namespace. When this test process ends, even by
 * SIGKILL, the program gets SIGTERM.
 */
export function spawnProgram(
  args: readonly string[],
  settings: Readonly<Record<string, string>>,
  netns: string | null = null,
): ChildProcess {
  const [file = '', ...words] = [
    // `nsenter` replaces itself by the program, so the child's process id is that of the program.
    ...(netns === null ? [] : ['nsenter', `--net=/run/netns/${netns}`]),
    process.execPath,
    PROGRAM,
    ...args,
  ]
  const own = Object.entries(process.env).filter(([name]) => !/^(SANDYARD_|MSB_|DATABASE_)/.test(name))
  const child = spawn(file, words, {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: { ...Object.fromEntries(own), ...PROGRAM_ENV, ...LITTLE_SPACE, ...settings },
  })
  // The kernel closes the pipe when this process ends, even by SIGKILL. `cat` then ends, and the program gets SIGTERM.
  const watchdog = spawn('sh', ['-c', 'cat > /dev/null; kill -TERM "$0"', String(child.pid)], {
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  watchdog.unref()
  child.once('exit', () => {
    watchdog.kill('SIGKILL')
  })
  return child
}

/**
 * Tests run many sandboxes with default disks, also on a machine with little free space, and many servers at once, which
 * can't all have the default port of SSH.
 */
const LITTLE_SPACE = { SANDYARD_DISK_OVERCOMMIT: '64', SANDYARD_SSH_PORT: 'off' }

async function endProcess(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill(signal)
  await waitUntil(() => child.exitCode !== null || child.signalCode !== null, STOP_LIMIT_MS)
}

/** Reads the id of the first process of the embedded PostgreSQL on a data folder, or null. */
export function readPostmasterPid(dataDir: string): number | null {
  const text = readFileSyncOrNull(join(dataDir, 'database/postgres/data/postmaster.pid'))
  return text === null ? null : Number(text.split('\n')[0])
}
