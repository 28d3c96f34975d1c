import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openLane, type Lane } from './lane.ts'
import { firstBreach, playSeed } from './play.ts'
import { EVERYTHING_ON, inWorld } from './schedule.ts'
import { drain, passTime } from './steps.ts'

// What the schedules show is worth as much as their power to fail; and what they found is kept where it is rare.

let lane: Lane
before(async () => {
  lane = await openLane()
})
after(() => lane.close())

/** Enough for each of these: the rarest was seen after some tens. */
const COUNT = 400

test('a seed replays to the last step, and another one does something else', async () => {
  const hashes = new Set<string>()
  for (const seed of [1, 2, 3, 4, 5]) {
    const { hash } = await playSeed(lane, seed)
    assert.equal((await playSeed(lane, seed)).hash, hash, `seed ${String(seed)}`)
    hashes.add(hash)
  }
  assert.equal(hashes.size, 5)
})

test('without a watchdog, runs of a worker that stands still are called lost while they live', async () => {
  const found = await firstBreach(lane, { count: COUNT, switches: { ...EVERYTHING_ON, isWatched: false } })
  assert.match(found?.words ?? 'nothing was found', /^what lives on a machine is an open run of that machine/)
})

test('without a fence, runs of a worker that is cut off are called lost while they live', async () => {
  const switches = { ...EVERYTHING_ON, isWatched: false, isFenced: false }
  const found = await firstBreach(lane, { count: COUNT, switches })
  assert.match(found?.words ?? 'nothing was found', /^what lives on a machine is an open run of that machine/)
})

test('a database that loses what it said it kept breaks a law', async () => {
  const found = await firstBreach(lane, { count: COUNT, switches: { ...EVERYTHING_ON, keepsWord: false } })
  assert.notEqual(found, null)
})

test('replicas whose clocks differ by an hour call no worker lost that goes on reporting', async () => {
  let played = 0
  for (let seed = 1; played < 3; seed++) {
    const { breach } = await inWorld(lane, { seed, switches: EVERYTHING_ON }, async (world) => {
      await drain(world, 20)
      await passTime(world, LEAD_AND_LISTEN_MS)
      const leader = world.seats.find(({ replica }) => replica.leads())
      if (world.seats.length < 2 || leader === undefined) return
      leader.wall.offsetMs = 3_600_000
      await passTime(world, LEAD_AND_LISTEN_MS)
      await world.act('the workers begin', () => {
        for (const machine of world.machines) machine.boot()
      })
      await drain(world, 50)
      await world.act('a client asks', () => world.note(world.clients.ask('create', leader.replica, world.seen())))
      for (let round = 0; round < 6; round++) {
        await drain(world, 400)
        await passTime(world, 4_000)
      }
      const lost = [...world.seen().runs.values()].filter(({ outcome }) => outcome === 'lost')
      assert.deepEqual(lost, [])
      played += 1
    })
    assert.equal(breach, null, `seed ${String(seed)}`)
  }
})

/** Until one of two replicas leads and has listened for a lease. */
const LEAD_AND_LISTEN_MS = 35_000
