import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { converge } from './converge.ts'
import { openLane, type Lane } from './lane.ts'
import { EVERYTHING_ON, inWorld, type Outcome } from './schedule.ts'
import { playSteps } from './steps.ts'

let lane: Lane
before(async () => {
  lane = await openLane()
})
after(() => lane.close())

function run(seed: number): Promise<Outcome> {
  return inWorld(lane, { seed, switches: EVERYTHING_ON }, async (world) => {
    await playSteps(world)
    await converge(world)
  })
}

test('a seed replays to the last step, and another one does something else', async () => {
  for (const seed of [1, 2, 3]) assert.equal((await run(seed)).hash, (await run(seed)).hash)
  assert.notEqual((await run(4)).hash, (await run(5)).hash)
})

test('every law holds after every step of every schedule', async () => {
  for (let seed = 1; seed <= 50; seed++) {
    const { breach, trace } = await run(seed)
    assert.equal(breach, null, `seed ${String(seed)}:\n${trace.join('\n')}`)
  }
})
