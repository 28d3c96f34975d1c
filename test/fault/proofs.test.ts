import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openLane, type Lane } from './lane.ts'
import { firstBreach, playSeed } from './play.ts'
import { EVERYTHING_ON } from './schedule.ts'

// What the schedules show is worth as much as their power to fail.

let lane: Lane
before(async () => {
  lane = await openLane()
})
after(() => lane.close())

/** Enough for each of these: the rarest was seen after some tens. */
const COUNT = 600

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

test('a report that is taken for whichever run its sandbox has now breaks a law', async () => {
  const found = await firstBreach(lane, { count: COUNT, switches: { ...EVERYTHING_ON, knowsRuns: false } })
  assert.notEqual(found, null)
})

test('a report that is taken in twice, or after a later one, breaks a law', async () => {
  const found = await firstBreach(lane, { count: COUNT, switches: { ...EVERYTHING_ON, knowsOrder: false } })
  assert.notEqual(found, null)
})

test('a database that loses what it said it kept breaks a law', async () => {
  const found = await firstBreach(lane, { count: COUNT, switches: { ...EVERYTHING_ON, keepsWord: false } })
  assert.notEqual(found, null)
})
