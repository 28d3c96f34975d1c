import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { collectGarbage } from '../support/collect-garbage.ts'
import { openFixture, type Fixture } from './fixture.ts'
import { findViolatingSeed, runSeed } from './run-seeds.ts'
import { ALL_MECHANISMS, runSchedule } from './schedule.ts'
import { drain, MAX_STEPS, passTime, runSteps } from './steps.ts'

// Schedules prove something only if they can fail. These tests turn safety mechanisms off and expect a violation. The
// first two and the last test don't: they check that seeds replay and that schedules are freed, and the last is the regression test of a bug that a
// schedule found.

let fixture: Fixture
before(async () => {
  fixture = await openFixture()
})
after(() => fixture.close())

/** The maximum number of seeds that a test tries. The rarest violation needed fewer than a hundred. */
const COUNT = 400

test('a seed replays to the last step, and each seed runs another schedule', async () => {
  const hashes = new Set<string>()
  for (const seed of [1, 2, 3, 4, 5]) {
    const { hash } = await runSeed(fixture, seed)
    assert.equal((await runSeed(fixture, seed)).hash, hash, `seed ${String(seed)}`)
    hashes.add(hash)
  }
  assert.equal(hashes.size, 5)
})

test('a schedule that has ended leaves nothing in memory', async () => {
  const worlds: WeakRef<object>[] = []
  for (const seed of [1, 2, 3, 4, 5])
    await runSchedule(fixture, { seed, mechanisms: ALL_MECHANISMS }, async (world) => {
      worlds.push(new WeakRef(world.gates))
      await runSteps(world, MAX_STEPS)
    })
  await collectGarbage()
  assert.deepEqual(
    worlds.map((world) => world.deref()),
    worlds.map(() => undefined),
  )
})

test('without a watchdog, runs of a paused worker are recorded as lost while they are alive', async () => {
  const found = await findViolatingSeed(fixture, { count: COUNT, mechanisms: { ...ALL_MECHANISMS, isWatched: false } })
  assert.match(found?.message ?? 'no violation', RUNS_ARE_OPEN)
})

test('without self-fencing, runs of a disconnected worker are recorded as lost while they are alive', async () => {
  const mechanisms = { ...ALL_MECHANISMS, isWatched: false, isFenced: false }
  const found = await findViolatingSeed(fixture, { count: COUNT, mechanisms })
  assert.match(found?.message ?? 'no violation', RUNS_ARE_OPEN)
})

test('a database that loses committed transactions violates an invariant', async () => {
  const found = await findViolatingSeed(fixture, { count: COUNT, mechanisms: { ...ALL_MECHANISMS, isDurable: false } })
  assert.notEqual(found, null)
})

test('replicas whose clocks differ by an hour record no run of a reporting worker as lost', async () => {
  let checked = 0
  for (let seed = 1; checked < 3; seed++) {
    assert.ok(seed <= COUNT, 'hardly any schedule elects a leader')
    const { violation } = await runSchedule(fixture, { seed, mechanisms: ALL_MECHANISMS }, async (world) => {
      await drain(world, 20)
      await passTime(world, ELECTED_AND_OBSERVED_MS)
      const leader = world.hosts.find(({ replica }) => replica.isLeader())
      if (world.hosts.length < 2 || leader === undefined) return
      leader.wall.offsetMs = 3_600_000
      await passTime(world, ELECTED_AND_OBSERVED_MS)
      await world.act('the workers start', () => {
        for (const machine of world.machines) machine.startWorker()
      })
      await drain(world, 50)
      await world.act('a client sends a create', () =>
        world.trace(world.clients.send('create', leader.replica, world.snapshot())),
      )
      for (let round = 0; round < 6; round++) {
        await drain(world, 400)
        await passTime(world, 4_000)
      }
      const lost = [...world.snapshot().runs.values()].filter(({ outcome }) => outcome === 'lost')
      assert.deepEqual(lost, [])
      checked += 1
    })
    assert.equal(violation, null, `seed ${String(seed)}`)
  }
})

const RUNS_ARE_OPEN = /^every run that is alive on a machine is an open run of that machine/

/** The time after which one of two replicas leads and has observed the workers for a lease. */
const ELECTED_AND_OBSERVED_MS = 35_000
