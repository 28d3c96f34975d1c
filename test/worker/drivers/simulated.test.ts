import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LogEntry } from '../../../src/contract/streams/log-protocol.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { behaviourByImage } from '../../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld, type SimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { makeTestLogs, readAll } from '../../support/logs.ts'
import { makeDesiredRun } from '../../support/desired-run.ts'
import { describeConformance, find } from './conformance.ts'

const behaviourOf = behaviourByImage([
  { image: /missing/, behaviour: { startFailure: { reason: 'image', message: 'no such image' } } },
  { image: /slow/, behaviour: { startDelayMs: 60_000 } },
  { image: /ends/, behaviour: { endsAfterMs: 50, outcome: { kind: 'exited', code: 7 } } },
])

function open(world: SimulatedWorld): Driver {
  return makeSimulatedDriver({
    world,
    clock: systemClock,
    capacity: { vcpus: 4, memory_mib: 4096, disk_mib: 10_000 },
    behaviourOf,
  })
}

const shared = makeSimulatedWorld()
describeConformance({
  name: 'simulated',
  whyNot: null,
  open: () => Promise.resolve(open(shared)),
  makeRun: makeDesiredRun,
  specs: { failing: { image: 'local/missing' }, slow: { image: 'local/slow' }, endsWith7: { image: 'local/ends' } },
  run: null,
  openDefaultVolume: null,
  leftovers: () => Promise.resolve([]),
})

test('a simulated sandbox reports that nothing runs, and accepts no channel', async () => {
  const driver = open(makeSimulatedWorld())
  const desired = makeDesiredRun()
  await driver.start(desired, new AbortController().signal)
  assert.match((await driver.probe()).report.isolation, /SIMULATED/)
  await assert.rejects(driver.openChannel(desired.run_id), /simulated/)
  await driver.close()
})

test('an injected fault ends a run with its outcome', async () => {
  const world = makeSimulatedWorld()
  const driver = open(world)
  const desired = makeDesiredRun()
  await driver.start(desired, new AbortController().signal)
  world.end(desired.run_id, { kind: 'out_of_memory' })
  assert.deepEqual((await find(driver, desired.run_id))?.outcome, { kind: 'out_of_memory' })
  await driver.close()
})

test('the log of a simulated sandbox has its events, and its followers end with each run', async () => {
  const { logs, remove } = await makeTestLogs()
  const world = makeSimulatedWorld()
  const driver = makeSimulatedDriver({ world, clock: systemClock, logs })
  const first = makeDesiredRun()
  const second = makeDesiredRun({}, first.sandbox_id)
  await driver.start(first, new AbortController().signal)
  const following = readAll(logs, first.sandbox_id, { follows: true })
  await driver.stop(first.run_id, 0)
  const told = ['started', 'stop requested', 'stopped']
  assert.deepEqual(linesOf(await following), told)
  await driver.start(second, new AbortController().signal)
  assert.equal(logs.isLive(first.sandbox_id), true)
  world.end(second.run_id, { kind: 'out_of_memory' })
  const all = linesOf(await readAll(logs, first.sandbox_id, { follows: true }))
  assert.deepEqual(all.slice(0, 4), [...told, 'started'])
  assert.match(all[4] ?? '', /out of memory/)
  await driver.close()
  await remove()
})

function linesOf(entries: readonly LogEntry[]): readonly string[] {
  return entries.map(({ text }) => text.trimEnd())
}
