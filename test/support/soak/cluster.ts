import assert from 'node:assert/strict'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { startEmbedded } from '../../../src/store/embedded/embedded-server.ts'
import { freePort } from '../free-port.ts'
import { findLeftovers } from '../leftovers.ts'
import { onServer } from '../postgres.ts'
import { makeProgram, type ProgramProcess } from '../program.ts'
import { whyNoServer } from '../server.ts'
import { waitUntil } from '../wait.ts'
import { PROGRAM } from '../program-file.ts'

/** Several server and worker processes on a PostgreSQL that syncs to disk. */
export type SoakCluster = {
  /** The URLs of the server processes. */
  readonly urls: readonly string[]
  readonly key: string
  /** Whether the workers run real sandboxes, and the reason if not. */
  readonly areReal: boolean
  readonly why: string
  /** The processes into which no fault is injected. */
  readonly steady: readonly { readonly name: string; readonly program: Pick<ProgramProcess, 'pid'> }[]
  /** The faults. `inject` resolves when the fault is over. */
  readonly faults: readonly { readonly name: string; readonly inject: () => Promise<void> }[]
  /** Waits until no run is open. */
  settle(): Promise<void>
  /** Stops the workers. Resolves with what they left behind on the machine. */
  leftovers(): Promise<readonly string[]>
  output(): string
} & AsyncDisposable

const KEY = 'the-key-of-a-soak-123456789'
const REPLICAS = 2
const WORKERS = 2
const SETTLE_LIMIT_MS = 60_000
const FROZEN_MS = 5_000

/** Starts PostgreSQL, two server processes and two workers. Always dispose of it. */
export async function openSoakCluster(): Promise<SoakCluster> {
  const lacks = whyNoServer()
  const root = mkdtempSync(join(tmpdir(), 'sandyard-soak-'))
  chmodSync(root, 0o711)
  await using opened = new AsyncDisposableStack()
  opened.defer(() => rmSync(root, { recursive: true, force: true }))
  const database = await startEmbedded({
    dataDir: join(root, 'postgresql'),
    log: makeLog('error'),
    clock: systemClock,
    random: systemRandom,
  })
  opened.defer(() => database.stop())
  const common = {
    SANDYARD_LOG_LEVEL: 'warn',
    SANDYARD_SHUTDOWN: 'stop',
    SANDYARD_STOP_GRACE_MS: '500',
    SANDYARD_VCPU_OVERCOMMIT: '100',
    SANDYARD_DISK_OVERCOMMIT: '64',
    SANDYARD_READY_AHEAD: '1',
    SANDYARD_VOLUME_POOL_GIB: '1',
    ...(lacks === false ? {} : { SANDYARD_DRIVER: 'simulated' }),
  }
  const shared = {
    ...common,
    DATABASE_URL: database.connectionString,
    DATABASE_OWNER_URL: database.ownerConnectionString,
    SANDYARD_API_KEY: KEY,
    SANDYARD_SECRET_KEY: systemRandom.bytes(32).toString('base64'),
  }
  const folder = (name: string): string => {
    mkdirSync(join(root, name))
    return join(root, name)
  }

  const servers: { readonly program: ProgramProcess; readonly url: string }[] = []
  for (let n = 0; n < REPLICAS; n++) {
    const port = String(await freePort())
    const settings = { ...shared, SANDYARD_DATA_DIR: folder(`server-${String(n)}`), SANDYARD_PORT: port }
    const program = makeProgram(['serve'], settings, /ready on (\S+)/)
    opened.defer(() => program.stop())
    const [, url = ''] = await program.start()
    servers.push({ program, url })
  }
  const urls = servers.map(({ url }) => url)
  const workers: { readonly program: ProgramProcess; readonly dataDir: string }[] = []
  for (let n = 0; n < WORKERS; n++) {
    const dataDir = folder(`worker-${String(n)}`)
    const token = await makeToken({ ...shared, SANDYARD_DATA_DIR: folder(`operator-${String(n)}`) })
    const program = makeProgram(
      ['worker', '--join', urls[0] ?? ''],
      { ...common, SANDYARD_DATA_DIR: dataDir, SANDYARD_JOIN_TOKEN: token, SANDYARD_WORKER_NAME: `soak-${String(n)}` },
      /works for|ready/,
    )
    opened.defer(() => program.stop())
    await program.start()
    workers.push({ program, dataDir })
  }
  const [steadyServer, server] = servers
  const [steadyWorker, worker] = workers
  assert.ok(steadyServer !== undefined && server !== undefined && steadyWorker !== undefined && worker !== undefined)
  const again = async (program: ProgramProcess): Promise<void> => {
    await program.kill9()
    await program.start()
  }
  const freeze = async (program: ProgramProcess): Promise<void> => {
    program.freeze()
    await systemClock.sleep(FROZEN_MS)
    program.thaw()
  }
  const keep = opened.move()
  return {
    urls,
    key: KEY,
    areReal: lacks === false,
    why: lacks === false ? '' : lacks,
    steady: [
      { name: 'a server process', program: steadyServer.program },
      { name: 'a worker', program: steadyWorker.program },
    ],
    faults: [
      { name: 'kill -9 and restart of a server process', inject: () => again(server.program) },
      { name: 'kill -9 and restart of a worker', inject: () => again(worker.program) },
      { name: 'kill -9 of PostgreSQL', inject: () => killDatabase(() => database.pid()) },
      { name: `SIGSTOP of a server process for ${String(FROZEN_MS / 1000)} s`, inject: () => freeze(server.program) },
    ],
    async settle() {
      const open = (): Promise<number> =>
        onServer(asSuperuser(database), async (admin) => {
          const { rows } = await admin.query<{ count: string }>(
            'SELECT count(*) AS count FROM runs WHERE ended_at IS NULL',
          )
          return Number(rows[0]?.count)
        })
      await waitUntil(async () => (await open()) === 0, SETTLE_LIMIT_MS)
    },
    async leftovers() {
      for (const { program } of workers) await program.stop()
      const known = workers.filter(({ dataDir }) => existsSync(join(dataDir, 'name-prefix')))
      return (await Promise.all(known.map(({ dataDir }) => findLeftovers(dataDir)))).flat()
    },
    output: () => [...servers, ...workers].map(({ program }) => program.output().slice(-2_000)).join('\n---\n'),
    [Symbol.asyncDispose]: () => keep.disposeAsync(),
  }
}

/** The URL of a database for the superuser, to whom row-level security doesn't apply. */
function asSuperuser(database: { readonly connectionString: string; readonly adminConnectionString: string }): string {
  const url = new URL(database.adminConnectionString)
  url.pathname = new URL(database.connectionString).pathname
  return url.href
}

async function makeToken(env: Readonly<Record<string, string>>): Promise<string> {
  const { stdout } = await runCommand(process.execPath, [PROGRAM, 'worker', 'token', '--json'], {
    timeoutMs: 60_000,
    env: { ...process.env, ...env },
  })
  return String(JSON.parse(stdout).token)
}

async function killDatabase(pid: () => number): Promise<void> {
  const before = pid()
  process.kill(before, 'SIGKILL')
  await waitUntil(() => pid() !== before, 30_000)
}
