import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeSteadyTime } from '../../src/lib/steady-time.ts'

const DAY_MS = 86_400_000

/** A machine whose clocks a test moves. `passes` lets time pass, and `sleeps` lets it pass while the machine sleeps. */
function makeMachine() {
  const at = { wall: 1_800_000_000_000, monotonic: 5_000, boot: 90_000 }
  const steady = makeSteadyTime({
    wallMs: () => at.wall,
    monotonicMs: () => at.monotonic,
    sinceBootMs: () => at.boot,
  })
  const sleeps = (ms: number): void => {
    at.wall += ms
    at.boot += ms
  }
  const passes = (ms: number): void => {
    sleeps(ms)
    at.monotonic += ms
  }
  const jumps = (ms: number): void => {
    at.wall += ms
  }
  const startedMs = at.wall
  return { ...steady, passes, sleeps, jumps, elapsedMs: () => steady.nowMs() - startedMs }
}

for (const [name, jumpMs] of [
  ['ahead', DAY_MS],
  ['back', -DAY_MS],
] as const) {
  test(`a wall clock that is set a day ${name} changes no duration, and the jump is known until it is taken back`, () => {
    const machine = makeMachine()
    machine.passes(10_000)
    machine.jumps(jumpMs)
    machine.passes(5_000)
    assert.equal(machine.elapsedMs(), 15_000)
    assert.equal(machine.wallAheadMs(), jumpMs)
    machine.jumps(-jumpMs)
    machine.passes(5_000)
    assert.equal(machine.elapsedMs(), 20_000)
    assert.equal(machine.wallAheadMs(), 0)
  })
}

test('small corrections of the wall clock are followed, however many', () => {
  const machine = makeMachine()
  for (let i = 0; i < 10; i++) {
    machine.passes(60_000)
    machine.jumps(400)
    assert.equal(machine.wallAheadMs(), 0)
  }
  assert.equal(machine.elapsedMs(), 604_000)
})

test('the time that the machine sleeps passes, even when the wall clock was set meanwhile', () => {
  const machine = makeMachine()
  machine.passes(10_000)
  machine.sleeps(3_600_000)
  assert.equal(machine.elapsedMs(), 3_610_000)
  machine.passes(5_000)
  machine.sleeps(3_600_000)
  machine.jumps(DAY_MS)
  assert.equal(machine.elapsedMs(), 7_215_000)
  assert.equal(machine.wallAheadMs(), DAY_MS)
})
