import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { SYNC_HOLD_MS } from '../../src/contract/workers/worker-protocol.ts'
import { RENEW_DEADLINE_MS, WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import { waitForRecovery } from '../support/fault-invariants.ts'
import { runMsb } from '../support/msb.ts'
import { TEST_SERVER_VARIABLE } from '../support/postgres.ts'
import { noteFault } from '../support/reliability.ts'
import { startReplicaWorld, type ReplicaProcess, type ReplicaWorld } from '../support/replica-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'

// Two server processes and a worker share an external PostgreSQL, which becomes unavailable.

/** An outage during which a joined worker always keeps its sandboxes: see docs/decisions/0025-database-faults.md. */
const SHORT_MS = (RENEW_DEADLINE_MS - SYNC_HOLD_MS) / 2
const LONG_MS = WORKER_LEASE_MS + 5_000
const SANDBOXES = ['fleet-0', 'fleet-1'] as const

describe('a fleet whose PostgreSQL goes away', { skip: whyNoServer() }, () => {
  let external: ExternalPostgres
  let world: ReplicaWorld
  const serverBefore = process.env[TEST_SERVER_VARIABLE]

  before(async () => {
    external = await startExternalPostgres()
    process.env[TEST_SERVER_VARIABLE] = external.adminUrl
    world = await startReplicaWorld(2)
  })
  after(async () => {
    if (serverBefore === undefined) delete process.env[TEST_SERVER_VARIABLE]
    else process.env[TEST_SERVER_VARIABLE] = serverBefore
    assert.deepEqual(await world.close(), [])
    await external.close()
  })

  test(`for ${String(SHORT_MS / 1000)} s: the worker keeps its sandboxes, and both processes continue`, async () => {
    const [first] = world.replicas
    assert.ok(first !== undefined)
    for (const name of SANDBOXES) {
      const body = { name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
      await mustCall(first, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
    }
    const before = await Promise.all(SANDBOXES.map((name) => look(first, name)))
    const runningMs = await goAway(SHORT_MS)
    assert.deepEqual(await Promise.all(SANDBOXES.map((name) => look(first, name))), before)
    noteFault({
      area: 'postgresql',
      fault: `kill -9 of the PostgreSQL of two server processes and a worker, restarted after ${String(SHORT_MS / 1000)} s`,
      injected: 1,
      checked:
        'the worker keeps its sandboxes; through both processes a sandbox is created, placed and started within 15 s',
      found: `${String(SANDBOXES.length)} of ${String(SANDBOXES.length)} the same; a sandbox runs after ${String(runningMs)} ms`,
    })
  })

  test(`for ${String(LONG_MS / 1000)} s, longer than a lease: the worker destroys its sandboxes and reports it, and each restarted sandbox runs once`, async () => {
    const [first] = world.replicas
    assert.ok(first !== undefined)
    const runningMs = await goAway(LONG_MS)
    for (const name of SANDBOXES) {
      const found: SandboxBody = await mustCall(first, 'get_sandbox_by_name', { params: { name } })
      assert.equal(found.status, 'failed', String(found.last_failure_message))
      await mustCall(first, 'start_sandbox', { params: { sandbox_id: found.id }, query: { wait_for: 'running' } })
      assert.match(await look(first, name), /^running /)
    }
    noteFault({
      area: 'postgresql',
      fault: `the same, for ${String(LONG_MS / 1000)} s, which is longer than a lease`,
      injected: 1,
      checked: 'the worker destroyed its sandboxes, and the API reports it; each sandbox is started again once',
      found: `${String(SANDBOXES.length)} failed and started again; a new sandbox runs after ${String(runningMs)} ms`,
    })
  })

  /**
   * Kills PostgreSQL with SIGKILL, restarts it after `awayMs`, and waits until each server process works again.
   * Resolves with the time until a new sandbox has run through each process, in milliseconds since PostgreSQL was back.
   */
  async function goAway(awayMs: number): Promise<number> {
    await external.end('SIGKILL')
    await systemClock.sleep(awayMs)
    await external.start()
    const recoveries = await Promise.all(world.replicas.map((replica) => waitForRecovery(replica)))
    return Math.max(...recoveries.map(({ runningMs }) => runningMs))
  }
})

/** A sandbox's status and start times as one text, which would differ if the sandbox had been restarted. */
async function look(server: ReplicaProcess, name: string): Promise<string> {
  const answer = await call(server, 'get_sandbox_by_name', { params: { name } })
  assert.ok(!answer.isRefusal, answer.text)
  const { stdout } = await runMsb(server, [
    'exec',
    name,
    '--',
    'sh',
    '-c',
    'stat -c %Z /proc/1; cut -d" " -f22 /proc/1/stat',
  ])
  return `${answer.body.status} ${String(answer.body.started_at)} ${stdout}`
}
