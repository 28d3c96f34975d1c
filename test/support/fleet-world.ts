import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { runCommand } from '../../src/lib/run-command.ts'
import { makeFleetWorker, type ClosableWorker, type FleetWorker } from './fleet-worker.ts'
import { spawnProgram, startServer, type RealServer } from './server.ts'
import { waitUntil } from './wait.ts'

const SUBNET = '10.77.0'
const COMMAND = { timeoutMs: 20_000 }
const ENDS_LIMIT_MS = 60_000

/** A control plane on a bridge, and workers in network namespaces of their own, each behind a link that can be cut. */
export type FleetWorld = {
  readonly server: RealServer
  /** Starts a worker that joins with a new join token, and waits until it is ready. */
  join(name: string, env?: Readonly<Record<string, string>>): Promise<FleetWorker>
  /** Runs `sandyard worker …` beside the control plane, asserts that it succeeds, and returns what it printed. */
  operate(...words: readonly string[]): Promise<string>
  /** Runs `sandyard worker …` beside the control plane, asserts that it fails, and returns its error output. */
  refused(...words: readonly string[]): Promise<string>
  close(): Promise<void>
}

/** Starts a control plane without workers. The test must run in its own network namespace (`isInOwnNetwork`). */
export async function makeFleetWorld(): Promise<FleetWorld> {
  const ip = (...args: readonly string[]) => runCommand('ip', args, COMMAND)
  await ip('link', 'add', 'br0', 'type', 'bridge')
  await ip('addr', 'add', `${SUBNET}.1/24`, 'dev', 'br0')
  await ip('link', 'set', 'br0', 'up')
  const chain = (hook: string) => `chain ${hook} { type filter hook ${hook} priority 0; };`
  await runCommand('nft', [`table ip cuts { ${chain('input')} ${chain('output')} }`], COMMAND)
  const root = mkdtempSync(join(tmpdir(), 'sandyard-fleet-'))
  chmodSync(root, 0o711)
  const server = await startServer({
    SANDYARD_HOST: `${SUBNET}.1`,
    SANDYARD_INSECURE: 'true',
    SANDYARD_DRIVER: 'simulated',
  })
  const workers: ClosableWorker[] = []

  const run = async (words: readonly string[]) => {
    const child = spawnProgram(['worker', ...words], { SANDYARD_DATA_DIR: server.dataDir })
    assert.ok(child.stdout !== null && child.stderr !== null)
    const ended = waitUntil(() => child.exitCode !== null, ENDS_LIMIT_MS)
    const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), ended])
    return { code: child.exitCode, out, err }
  }
  const world: FleetWorld = {
    server,
    async operate(...words) {
      const { code, out, err } = await run(words)
      assert.equal(code, 0, `sandyard worker ${words.join(' ')}: ${err}`)
      return out.trim()
    },
    async refused(...words) {
      const { code, err } = await run(words)
      assert.notEqual(code, 0, `sandyard worker ${words.join(' ')}`)
      return err
    },
    async join(name, env = {}) {
      const token = await world.operate('token')
      const address = `${SUBNET}.${String(10 + workers.length)}`
      await ip('netns', 'add', name)
      await ip('link', 'add', `v-${name}`, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name)
      await ip('link', 'set', `v-${name}`, 'master', 'br0', 'up')
      await ip('-n', name, 'addr', 'add', `${address}/24`, 'dev', 'eth0')
      for (const link of ['lo', 'eth0']) await ip('-n', name, 'link', 'set', link, 'up')
      await ip('-n', name, 'route', 'add', 'default', 'via', `${SUBNET}.1`)
      const dataDir = join(root, name)
      mkdirSync(dataDir)
      const worker = makeFleetWorker({ name, address, dataDir, env })
      workers.push(worker)
      await worker.start({
        SANDYARD_INSECURE: 'true',
        SANDYARD_JOIN: server.url,
        SANDYARD_JOIN_TOKEN: token,
        SANDYARD_WORKER_NAME: name,
      })
      return worker
    },
    async close() {
      const closed = await Promise.allSettled(workers.map((worker) => worker.close()))
      await server.close()
      rmSync(root, { recursive: true, force: true })
      for (const one of closed) if (one.status === 'rejected') throw one.reason
    },
  }
  try {
    await world.operate('drain', 'local') // `local` is the control plane's own simulated worker
    return world
  } catch (error) {
    await world.close()
    throw error
  }
}
