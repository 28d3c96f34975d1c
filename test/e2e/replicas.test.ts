import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { LEADER_LEASE_MS } from '../../src/loops/leader-election.ts'
import { WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { waitForRecovery, assertConsistentAfterFault } from '../support/fault-invariants.ts'
import { runMsb } from '../support/msb.ts'
import { dialRaw, openRaw, refusalOf } from '../support/raw-channel.ts'
import { noteFault } from '../support/reliability.ts'
import { startReplicaLoad, type ReplicaLoad } from '../support/replica-load.ts'
import { startReplicaWorld, type ReplicaProcess, type ReplicaWorld } from '../support/replica-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Three server processes on one PostgreSQL, a worker with real sandboxes, and clients that use any of the processes.

const CLIENTS = 3
/** How long processes are frozen: longer than a worker's lease and the leader's lease together. */
const STOPPED_MS = WORKER_LEASE_MS + LEADER_LEASE_MS
/**
 * The time limit for placing a run after any process died or froze. It covers the leader's lease, locks that a dead
 * process's session still holds, and a slow machine.
 */
const LOOPS_LIMIT_MS = 45_000
const KILLS = 3
const SMALL = { vcpus: 1, memory_mib: 64, disk_size_mib: 64 }

describe('server processes on one database', { skip: whyNoServer() }, () => {
  let world: ReplicaWorld
  let survivor: Pick<SandboxBody, 'id' | 'started_at'>

  before(async () => {
    world = await startReplicaWorld(3)
    const body = { name: 'survivor', image: DEMO_IMAGE, resources: SMALL }
    survivor = await mustCall(one(0), 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
  })
  after(async () => {
    assert.deepEqual(await world.close(), [], 'the worker left something on this machine')
  })

  function one(index: number): ReplicaProcess {
    const replica = world.replicas[index]
    assert.ok(replica)
    return replica
  }

  /** Runs clients while `inject` injects a fault, and asserts that nothing acknowledged was lost or duplicated. */
  async function underLoad(inject: (load: ReplicaLoad) => Promise<void>): Promise<ReplicaLoad> {
    const load = startReplicaLoad(world.replicas, CLIENTS)
    try {
      await served(load, 20)
      await inject(load)
      await served(load, 20)
      await assertConsistentAfterFault(one(1), load, world.adminUrl)
      await assertNobodyLost()
      return load
    } finally {
      for (const replica of world.replicas) replica.thaw()
      await load.stop()
    }
  }

  /** Waits until the load has had `count` more answers, from processes that are up. */
  async function served(load: ReplicaLoad, count: number): Promise<void> {
    const from = load.answered
    await waitUntil(() => load.hasFailed || load.answered - from >= count, 60_000)
  }

  async function assertNobodyLost(): Promise<void> {
    const lost = await world.rows(`SELECT payload FROM events WHERE payload ->> 'cause' = 'worker_lost'`)
    assert.deepEqual(lost, [], 'a worker was called lost that never was')
    const { status, started_at } = await mustCall(one(1), 'get_sandbox', { params: { sandbox_id: survivor.id } })
    assert.deepEqual([status, started_at], ['running', survivor.started_at], 'a run ended that nobody ended')
  }

  async function restart(replica: ReplicaProcess, load: ReplicaLoad): Promise<void> {
    await replica.start()
    load.noteUp(replica)
  }

  async function assertExec(replica: ReplicaProcess): Promise<void> {
    const { code, stdout, stderr } = await runMsb(replica, ['exec', 'survivor', '--', 'echo', 'here'])
    assert.deepEqual([code, stdout], [0, 'here\n'], stderr)
  }

  async function leader(): Promise<ReplicaProcess> {
    return waitUntil(async () => (await world.leader()) ?? false, LOOPS_LIMIT_MS)
  }

  test('one server process shows the metrics of the installation, so that sums over all of them are right', async () => {
    const sums = async (): Promise<readonly number[]> => {
      const texts = await Promise.all(
        world.replicas.map(async ({ url }) => (await fetch(new URL('/metrics', url))).text()),
      )
      const samples = texts.flatMap((text) => text.split('\n'))
      const sumOf = (prefix: string): number =>
        samples.reduce((sum, line) => (line.startsWith(prefix) ? sum + Number(line.split(' ').at(-1)) : sum), 0)
      return ['sandyard_leader', 'sandyard_workers{driver="oci",state="live"}', 'sandyard_open_runs{', 'sandyard_run_start_duration_seconds_count'].map(sumOf) // prettier-ignore
    }
    await waitUntil(async () => JSON.stringify(await sums()) === '[1,1,1,1]', LOOPS_LIMIT_MS)
  })

  test('a sandbox is reached through each server process', async () => {
    for (const replica of world.replicas) await assertExec(replica)
  })

  test('kill -9: the others serve requests, streams to the dead process end, and the worker stays reachable though its first URL is dead', async () => {
    const channel = await openRaw(one(0), survivor.id)
    let placedMs = 0
    const load = await underLoad(async (load) => {
      load.noteDown(one(0))
      await one(0).kill9()
      await channel.closed
      const { runningMs } = await waitForRecovery(one(1), LOOPS_LIMIT_MS)
      await assertExec(one(1))
      await assertExec(one(2))
      await restart(one(0), load)
      await assertExec(one(0))
      placedMs = Math.max(placedMs, runningMs)
      for (let killed = 1; killed < KILLS; killed++) {
        const victim = killed === 1 ? await leader() : one(randomBelow(systemRandom, 3))
        load.noteDown(victim)
        await victim.kill9()
        const other = world.replicas.find((replica) => replica !== victim)
        assert.ok(other)
        placedMs = Math.max(placedMs, (await waitForRecovery(other, LOOPS_LIMIT_MS)).runningMs)
        await restart(victim, load)
      }
    })
    noteFault({
      area: 'replicas',
      fault: 'kill -9 of one of three server processes, under load, then a start',
      injected: KILLS,
      checked: `requests to the others, a new sandbox within ${String(LOOPS_LIMIT_MS / 1000)} s, exec through the others, nothing acknowledged lost or doubled`,
      found: `${String(load.expected.length)} sandboxes, ${String(load.answered)} answers, ${String(load.unanswered)} requests to the dead one without an answer; a new sandbox ran after ${String(placedMs)} ms at most`,
    })
  })

  test('SIGSTOP of the leader and another for longer than both leases: the third continues alone, and the old leader writes nothing after SIGCONT', async () => {
    let placedMs = 0
    let [before, after] = [0, 0]
    const load = await underLoad(async (load) => {
      const old = await leader()
      const other = world.replicas.find((replica) => replica !== old)
      const third = world.replicas.findLast((replica) => replica !== old)
      assert.ok(other !== undefined && third !== undefined && other !== third)
      before = await epoch()
      const stoppedAtMs = systemClock.monotonicMs()
      for (const replica of [old, other]) {
        await load.noteFrozen(replica)
        replica.freeze()
      }
      placedMs = (await waitForRecovery(third, LOOPS_LIMIT_MS)).runningMs
      await assertExec(third)
      await waitUntil(async () => (await world.leader()) === third, LOOPS_LIMIT_MS) // a create needs no leader
      after = await epoch()
      assert.equal(await world.leader(), third)
      await systemClock.sleep(Math.max(0, stoppedAtMs + STOPPED_MS - systemClock.monotonicMs()))
      for (const replica of [old, other]) replica.thaw()
      await waitUntil(() => /another process has taken over leadership|gave up leadership/.test(old.output()), 20_000)
      for (const replica of [old, other]) {
        await waitForRecovery(replica)
        load.noteUp(replica)
      }
      assert.equal(await world.leader(), third)
      assert.equal(await epoch(), after)
    })
    assert.ok(after > before)
    noteFault({
      area: 'replicas',
      fault: `SIGSTOP of two of three server processes, the leader among them, for ${String(STOPPED_MS / 1000)} s`,
      injected: 2,
      checked:
        'requests to the third, loops, no worker called lost, no run ended, one more epoch of the lead and none after SIGCONT',
      found: `a new sandbox ran after ${String(placedMs)} ms; ${String(load.answered)} answers, ${String(load.unanswered)} requests to the stopped ones without an answer`,
    })
  })

  test('SIGSTOP of the leader, with which the worker syncs: the others continue', async () => {
    let placedMs = 0
    const load = await underLoad(async (load) => {
      const old = await leader() // since the previous test, the worker also syncs with the leader
      const other = world.replicas.find((replica) => replica !== old)
      assert.ok(other)
      const stoppedAtMs = systemClock.monotonicMs()
      await load.noteFrozen(old)
      old.freeze()
      placedMs = (await waitForRecovery(other, LOOPS_LIMIT_MS)).runningMs
      await systemClock.sleep(Math.max(0, stoppedAtMs + STOPPED_MS - systemClock.monotonicMs()))
      old.thaw()
      await waitForRecovery(old)
      load.noteUp(old)
    })
    noteFault({
      area: 'replicas',
      fault: `SIGSTOP of the server process that leads and that the worker syncs with, for ${String(STOPPED_MS / 1000)} s`,
      injected: 1,
      checked: 'requests to the others, loops, no worker marked as lost, no run ended',
      found: `a new sandbox ran after ${String(placedMs)} ms; ${String(load.answered)} answers, ${String(load.unanswered)} requests to the stopped ones without an answer`,
    })
  })

  test('a clean stop and start of the leader: another process takes over, and no request to the others fails', async () => {
    let placedMs = 0
    const load = await underLoad(async (load) => {
      const old = await leader()
      const other = world.replicas.find((replica) => replica !== old)
      assert.ok(other)
      load.noteDown(old)
      await old.stop()
      placedMs = (await waitForRecovery(other)).runningMs
      await assertExec(other)
      await restart(old, load)
      // This works at once, although the process with which the worker syncs has only just learned of the restarted
      // one.
      await assertExec(old)
    })
    noteFault({
      area: 'replicas',
      fault: 'SIGTERM of the server process that leads, then a start',
      injected: 1,
      checked: 'requests to the others, loops, exec through another, nothing acknowledged lost or doubled',
      found: `a new sandbox ran after ${String(placedMs)} ms; ${String(load.answered)} answers, ${String(load.unanswered)} requests to the ended one without an answer`,
    })
  })

  test('a key that is revoked at one process loses its channels at another, and after about a second opens no channel anywhere', async () => {
    const key = await mustCall(one(0), 'create_api_key', { body: { name: 'short', scopes: ['write'] } })
    assert.ok('key' in key && typeof key.key === 'string')
    const own = { url: one(1).url, key: key.key }
    const channel = await openRaw(own, survivor.id)
    await mustCall(one(0), 'revoke_api_key', { params: { api_key_id: key.id } })
    assert.deepEqual(await channel.closed, { code: 4401, reason: 'the API key was revoked' })
    await waitUntil(async () => (await call(own, 'list_sandboxes')).status === 401, 5_000)
    for (const { url } of world.replicas) {
      assert.equal((await call({ ...own, url }, 'list_sandboxes')).status, 401)
      assert.equal((await refusalOf(dialRaw({ ...own, url }, survivor.id))).status, 401)
    }
  })

  test('processes exit with the reason when a newer release changes the schema', async () => {
    await world.rows(
      `INSERT INTO sandyard_migrations (id, name, sha256, breaking) VALUES (9999, '9999_split', '', 'sandboxes become two tables')`,
    )
    await world.rows(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE application_name = 'sandyard schema' AND datname = current_database()`)
    const why = /sandyard: .*newer than this program.*9999_split \(sandboxes become two tables\)/
    for (const replica of world.replicas) await waitUntil(() => why.test(replica.output()), 30_000)
  })

  async function epoch(): Promise<number> {
    const [row] = await world.rows<{ epoch: string }>(`SELECT epoch FROM leads WHERE name = 'loops'`)
    return Number(row?.epoch)
  }
})
