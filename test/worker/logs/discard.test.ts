import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeTestLogs } from '../../support/logs.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

test('the log of a sandbox is deleted with the sandbox', async () => {
  const { logs, dir, remove } = await makeTestLogs()
  const end = world.runWorker(makeSimulatedDriver({ clock: systemClock, logs }), { logs })
  const { id } = await world.create()
  await waitUntil(() => existsSync(join(dir, id)))
  await waitUntil(async () => (await world.statusOf(id)).status === 'running')
  await deleteSandbox(world.control.deps, world.control.caller, { id })
  await waitUntil(() => !existsSync(join(dir, id)))
  assert.equal(logs.isLive(id), false)
  await end()
  await remove()
})
