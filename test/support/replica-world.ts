import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { QueryResultRow } from 'pg'
import { runCommand } from '../../src/lib/run-command.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { freePort } from './free-port.ts'
import { findLeftovers } from './leftovers.ts'
import { makeTestDatabase, onServer } from './postgres.ts'
import { makeProgram, type ProgramProcess } from './program.ts'
import type { RealServer } from './server.ts'
import { PROGRAM } from './program-file.ts'

/** A server process on a fixed port. Its URL stays the same when it restarts. */
export type ReplicaProcess = ProgramProcess & Pick<RealServer, 'url' | 'key' | 'clientEnv'>

/** Several server processes on one PostgreSQL, and a worker that joined through the first one. */
export type ReplicaWorld = {
  readonly replicas: readonly ReplicaProcess[]
  readonly worker: ProgramProcess
  /** The superuser's URL of the database. */
  readonly adminUrl: string
  /** Resolves with the process that leads the loops now. Null if none does. */
  leader(): Promise<ReplicaProcess | null>
  rows<Row extends QueryResultRow>(text: string): Promise<readonly Row[]>
  /** Stops all processes. Resolves with what the worker left behind on this machine (`findLeftovers`). */
  close(): Promise<readonly string[]>
}

const COMMAND_LIMIT_MS = 60_000

/** Starts `count` server processes, each with settings of its own, and a worker with real sandboxes. Always close it. */
export async function startReplicaWorld(
  count: number,
  own: readonly Readonly<Record<string, string>>[] = [],
): Promise<ReplicaWorld> {
  const root = mkdtempSync(join(tmpdir(), 'sandyard-replicas-'))
  chmodSync(root, 0o711) // the unprivileged users to which sandboxes' users are mapped must be able to pass through
  const home = join(root, 'home')
  mkdirSync(home)
  const database = await makeTestDatabase()
  const key = 'test-key-of-the-first-organization'
  const shared = {
    DATABASE_URL: database.url,
    SANDYARD_SECRET_KEY: systemRandom.bytes(32).toString('base64'),
    SANDYARD_API_KEY: key,
    SANDYARD_LOG_LEVEL: 'info',
    SANDYARD_STOP_GRACE_MS: '500',
  }
  const replicas = await Promise.all(
    Array.from({ length: count }, async (_, index): Promise<ReplicaProcess> => {
      const port = String(await freePort())
      const url = `http://127.0.0.1:${port}`
      const settings = { ...shared, SANDYARD_PORT: port, SANDYARD_DATA_DIR: join(root, `r${String(index)}`), ...own[index] } // prettier-ignore
      const clientEnv = { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: key, HOME: home }
      return { ...makeProgram(['serve'], settings, /ready on (\S+)/), url, key, clientEnv }
    }),
  )
  const workerDir = join(root, 'worker')
  let worker: ProgramProcess | null = null

  const world: Omit<ReplicaWorld, 'worker'> = {
    replicas,
    adminUrl: database.adminUrl,
    async leader() {
      const [lead] = await world.rows<{ url: string }>(
        `SELECT r.url FROM leads l JOIN replicas r ON r.id = l.holder WHERE l.name = 'loops'`,
      )
      return replicas.find(({ url }) => url === lead?.url) ?? null
    },
    rows: async <Row extends QueryResultRow>(text: string) =>
      (await onServer(database.adminUrl, (admin) => admin.query<Row>(text))).rows,
    async close() {
      if (worker !== null) await worker.stop()
      const left = worker === null ? [] : await findLeftovers(workerDir)
      await Promise.all(replicas.map((replica) => replica.stop()))
      await database.close()
      rmSync(root, { recursive: true, force: true })
      return left
    },
  }
  try {
    await Promise.all(replicas.map((replica) => replica.start()))
    const env = { ...process.env, ...shared, SANDYARD_DATA_DIR: join(root, 'r0') }
    const token = await runCommand(process.execPath, [PROGRAM, 'worker', 'token'], { timeoutMs: COMMAND_LIMIT_MS, env })
    const joined = {
      SANDYARD_DATA_DIR: workerDir,
      SANDYARD_JOIN: replicas[0]?.url ?? '',
      SANDYARD_JOIN_TOKEN: token.stdout.trim(),
      SANDYARD_DRIVER: 'oci',
      SANDYARD_READY_AHEAD: '1',
      SANDYARD_WARM: '2',
      SANDYARD_VOLUME_POOL_GIB: '1',
      SANDYARD_VCPU_OVERCOMMIT: '100',
      SANDYARD_DISK_OVERCOMMIT: '64',
      SANDYARD_SHUTDOWN: 'stop',
      SANDYARD_LOG_LEVEL: 'info',
    }
    worker = makeProgram(['worker'], joined, /ready: the control plane/)
    await worker.start()
    return { ...world, worker }
  } catch (error) {
    await world.close()
    throw error
  }
}
