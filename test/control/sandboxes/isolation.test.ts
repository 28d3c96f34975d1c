import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { getSandbox } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import type { ObservedRun } from '../../../src/contract/workers/worker-protocol.ts'
import { recordReport } from '../../../src/control/workers/record-report.ts'
import type { WorkerId } from '../../../src/domain/ids.ts'
import { ISOLATION_LEVEL_FACT, isolationAbilities, type IsolationLevel } from '../../../src/domain/isolation.ts'
import { makeVolumeWorld, never, type VolumeWorld } from '../../support/volume-world.ts'
import { reportOf } from '../../support/report.ts'

let world: VolumeWorld
let worker: WorkerId
before(async () => {
  world = await makeVolumeWorld()
  worker = await world.addWorker('w1')
})
after(() => world.close())

let seq = 0
async function report(level: IsolationLevel, observed_runs: readonly ObservedRun[]): Promise<void> {
  const driver = {
    name: 'played',
    isolation: level,
    abilities: isolationAbilities(level),
    images: [],
    default_disk_mib: 1,
  }
  await recordReport(world.deps, reportOf(worker, { seq: ++seq, driver, observed_runs }))
}

test('a sandbox has the isolation of its latest run, whatever its worker reports about later ones', async () => {
  const { deps, caller } = world
  const { id, isolation } = await world.create([])
  assert.equal(isolation, null)
  const read = () => getSandbox(deps, caller, { id })
  const observe = async (phase: 'running' | 'ended', facts: ObservedRun['facts'] = {}): Promise<ObservedRun> => {
    const { run_id } = await read()
    assert.ok(run_id !== null)
    return { run_id, sandbox_id: id, phase, facts, outcome: { kind: 'stopped' } }
  }
  const restart = async (): Promise<void> => {
    await startSandbox(deps, caller, { id }, { waitMs: null, signal: never })
    await world.place()
  }
  await report('gvisor', [])
  await world.place()
  assert.equal((await read()).isolation, null)
  const running = await observe('running', { [ISOLATION_LEVEL_FACT]: 'gvisor' })
  await report('gvisor', [running])
  assert.equal((await read()).isolation, 'gvisor')
  await report('container', [running]) // the worker has started again with another runtime
  assert.equal((await read()).isolation, 'gvisor')

  await stopSandbox(deps, caller, { id })
  await report('container', [await observe('ended')])
  assert.deepEqual([(await read()).status, (await read()).isolation], ['stopped', 'gvisor'])
  await restart()
  assert.equal((await read()).isolation, null)
  await report('container', [await observe('running', { [ISOLATION_LEVEL_FACT]: 'container' })])
  assert.equal((await read()).isolation, 'container')

  await stopSandbox(deps, caller, { id })
  await report('container', [await observe('ended')])
  await restart()
  await report('container', [await observe('running', { [ISOLATION_LEVEL_FACT]: 'a bunker' })])
  assert.deepEqual([(await read()).status, (await read()).isolation], ['running', null])
})
