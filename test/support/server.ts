import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { systemClock } from '../../src/lib/clock.ts'
import { findLeftovers } from './leftovers.ts'
import { whyNoOci } from './oci-driver.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { isRunning } from './process-tree.ts'
import { waitUntil } from './wait.ts'

/** The program as its users start it. */
const PROGRAM = join(import.meta.dirname, '../../src/cli.ts')
/** A first start makes the database cluster and the demo image: 3 s here, 2026-11; a busy machine takes its time. */
const READY_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 30_000

/** `sandyard up` as a process of its own, with real sandboxes, on a data folder that goes when it is closed. */
export type RealServer = {
  /** Stays the same over restarts. */
  readonly url: string
  readonly key: string
  readonly dataDir: string
  /** What the public client needs to find it, and a home folder that is its own. */
  readonly clientEnv: Readonly<Record<string, string>>
  /** Of the process now. */
  pid(): number
  /** All that it printed and logged, over all its starts. */
  output(): string
  /** Ends it by SIGTERM; its sandboxes end with it unless `shutdown` is `keep`. Answers what it took, in milliseconds. */
  stop(): Promise<number>
  /** Ends it by SIGKILL, and its PostgreSQL with it, as a power cut would. */
  kill9(): Promise<void>
  /** Starts it again on its folder and waits until it is ready. */
  start(env?: Readonly<Record<string, string>>): Promise<void>
  /** Stops it, asserts that nothing of it is left on the machine, and removes its folder. */
  close(): Promise<void>
}

/** Why no real server with real sandboxes can run here, or false when it can. For `{ skip }`. */
export function whyNoServer(): string | false {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  const lacksFilter = !['/usr/sbin', '/sbin', ...folders].some((folder) => existsSync(join(folder, 'nft')))
  return whyNoOci() ?? (lacksFilter ? 'nft is not installed' : false)
}

/** Starts a server with settings of its own and waits until it is ready. Close it, whatever happens. */
export async function startServer(env: Readonly<Record<string, string>> = {}): Promise<RealServer> {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-e2e-'))
  chmodSync(root, 0o711) // sandboxes' users, strangers to this machine, pass through it
  const dataDir = join(root, 'data')
  const home = join(root, 'home')
  mkdirSync(home)
  const key = 'test-key-of-the-first-organization'
  const settings = {
    SANDYARD_DATA_DIR: dataDir,
    SANDYARD_API_KEY: key,
    SANDYARD_READY_AHEAD: '1',
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
 * Starts the program with these settings, in a network namespace if that is named; it gets SIGTERM when this test process
 * ends before it, in whatever way.
 */
export function spawnProgram(
  args: readonly string[],
  settings: Readonly<Record<string, string>>,
  netns: string | null = null,
): ChildProcess {
  const [file = '', ...words] = [
    ...(netns === null ? [] : ['nsenter', `--net=/run/netns/${netns}`]), // which becomes the program: its id is the program's
    process.execPath,
    PROGRAM,
    ...args,
  ]
  const own = Object.entries(process.env).filter(([name]) => !/^(SANDYARD_|MSB_|DATABASE_URL)/.test(name))
  const child = spawn(file, words, {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: { ...Object.fromEntries(own), ...settings },
  })
  // The pipe closes when this process ends in any way, kill -9 included: the server must not outlive its test.
  const watchdog = spawn('sh', ['-c', 'cat > /dev/null; kill -TERM "$0"', String(child.pid)], {
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  watchdog.unref()
  child.once('exit', () => {
    watchdog.kill('SIGKILL')
  })
  return child
}

async function endProcess(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill(signal)
  await waitUntil(() => child.exitCode !== null || child.signalCode !== null, STOP_LIMIT_MS)
}

/** The first process of the embedded PostgreSQL on a data folder, or null. */
export function readPostmasterPid(dataDir: string): number | null {
  const path = join(dataDir, 'database/postgres/data/postmaster.pid')
  return existsSync(path) ? Number(readFileSync(path, 'utf8').split('\n')[0]) : null
}
