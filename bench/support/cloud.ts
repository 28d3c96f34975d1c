import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { pause } from './pause.ts'

/** A real `sandyard up` in a process of its own, with its own data folder. */
export type Cloud = {
  readonly host: string
  readonly port: number
  readonly pid: number
  readonly dataDir: string
  readonly headers: Readonly<Record<string, string>>
  call(method: string, path: string, body?: unknown): Promise<Reply>
  /** The environment variables with which clients connect to the embedded server as its superuser. */
  adminEnv(): Promise<Readonly<Record<string, string>>>
} & AsyncDisposable

/** What starts the server. */
export type CloudProgram = { readonly command: readonly string[]; readonly cwd: string }

export type Reply = { readonly status: number; readonly body: Readonly<Record<string, unknown>> }

const KEY = 'msb_benchmark_key'
const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 20_000

/**
 * Settings that raise the limits on requests, because one key sends all requests of a benchmark. Requests are still
 * counted, but never refused.
 */
const UNLIMITED = {
  SANDYARD_KEY_REQUESTS_PER_SEC: '1000000',
  SANDYARD_KEY_REQUEST_BURST: '10000000',
  SANDYARD_ORG_REQUESTS_PER_SEC: '1000000',
  SANDYARD_ORG_REQUEST_BURST: '10000000',
  SANDYARD_ORG_REQUESTS_IN_FLIGHT: '1000000',
  SANDYARD_DISK_OVERCOMMIT: '1000',
}
/** Its usual port may be taken by another server of this machine. The benchmark of SSH names a port. */
const NO_SSH = { SANDYARD_SSH_PORT: 'off' }

/** The program that `npm run bench` has built, or that of the sources, without a set-up. */
const PROGRAM: CloudProgram = {
  command: [
    process.execPath,
    process.env['SANDYARD_BENCH_PROGRAM'] ?? join(import.meta.dirname, '../../src/cli.ts'),
    'up',
  ],
  cwd: process.cwd(),
}

/**
 * Starts a server on a free port. Resolves when it is ready. Closing the cloud stops the server and deletes its data, but not a data
 * folder that `env` names.
 */
export async function startCloud(
  env: Readonly<Record<string, string>>,
  { command: [file = '', ...args], cwd }: CloudProgram = PROGRAM,
): Promise<Cloud> {
  // Don't use /root: the database's user can't enter it.
  const dataDir = await mkdtemp('/tmp/sandyard-bench-')
  const child = spawn(file, args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    cwd,
    env: {
      ...process.env,
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_PORT: '0',
      SANDYARD_API_KEY: KEY,
      SANDYARD_SHUTDOWN: 'stop',
      SANDYARD_STOP_GRACE_MS: '0',
      ...UNLIMITED,
      ...NO_SSH,
      ...env,
    },
  })
  const endWithUs = (): void => void child.kill('SIGTERM')
  process.once('exit', endWithUs)
  const stop = async (): Promise<void> => {
    await end(child)
    process.off('exit', endWithUs)
    await rm(dataDir, { recursive: true, force: true })
  }
  try {
    const url = new URL(await readUrl(child))
    const headers = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' }
    const call: Cloud['call'] = async (method, path, body) => {
      const init = body === undefined ? {} : { body: JSON.stringify(body) }
      const reply = await fetch(new URL(path, url), { method, headers, ...init })
      return { status: reply.status, body: JSON.parse((await reply.text()) || '{}') }
    }
    await untilReady(call)
    return {
      host: url.hostname,
      port: Number(url.port),
      pid: child.pid ?? 0,
      dataDir,
      headers,
      call,
      adminEnv: () => adminEnv(dataDir),
      [Symbol.asyncDispose]: stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}

async function readUrl(child: ChildProcess): Promise<string> {
  if (child.stdout === null) throw new Error('the server has no output to read its address from')
  for await (const line of createInterface({ input: child.stdout })) {
    const url = /ready on (\S+)/.exec(line)?.[1]
    if (url !== undefined) {
      child.stdout.resume()
      return url
    }
  }
  throw new Error('the server ended before it was ready')
}

async function untilReady(call: Cloud['call']): Promise<void> {
  const deadlineMs = performance.now() + START_LIMIT_MS
  while ((await call('GET', '/readyz')).status !== 200) {
    if (performance.now() > deadlineMs) throw new Error('the server did not become ready')
    await pause(100)
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exit = once(child, 'exit')
  const late = setTimeout(() => child.kill('SIGKILL'), STOP_LIMIT_MS)
  child.kill('SIGTERM')
  await exit
  clearTimeout(late)
}

/** The environment variables with which PostgreSQL's programs and `pg` connect to the embedded server. */
async function adminEnv(dataDir: string): Promise<Readonly<Record<string, string>>> {
  const url = new URL(await readFile(join(dataDir, 'database.url'), 'utf8'))
  const passwords: unknown = JSON.parse(await readFile(join(dataDir, 'database', 'postgres-passwords.json'), 'utf8'))
  if (typeof passwords !== 'object' || passwords === null || !('admin' in passwords))
    throw new Error('the embedded server has no administrator')
  return {
    PGHOST: url.searchParams.get('host') ?? '',
    PGPORT: url.port,
    PGDATABASE: url.pathname.slice(1),
    PGUSER: 'postgres',
    PGPASSWORD: String(passwords.admin),
  }
}
