import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { makeFleetWorld, type FleetWorld } from '../support/fleet-world.ts'
import type { FleetWorker } from '../support/fleet-worker.ts'
import { isInOwnNetwork } from '../support/own-network.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// What Kubernetes and Nomad do to a worker: SIGTERM, and then they wait.

const LIMIT_MS = 60_000

if (isInOwnNetwork(import.meta.filename, 300_000)) {
  describe('a worker with SANDYARD_SHUTDOWN=drain', { skip: whyNoServer() }, () => {
    let world: FleetWorld
    let worker: FleetWorker
    before(async () => {
      world = await makeFleetWorld()
      worker = await world.join('leaver', { SANDYARD_SHUTDOWN: 'drain', SANDYARD_DRAIN_SECS: '3600' })
    })
    after(() => world.close())

    test('takes no new sandbox after SIGTERM, and ends when its last one has', async () => {
      const first = await create('first', { wait_for: 'running' })
      worker.signal('SIGTERM')
      await waitUntil(() => /draining: 1 sandboxes still run/.test(worker.output()), LIMIT_MS)
      const later = await create('later')
      await waitUntil(async () => (await read(later.id)).status_reason === 'insufficient_capacity', LIMIT_MS)
      assert.equal((await read(first.id)).status, 'running')
      await mustCall(world.server, 'stop_sandbox', { params: { sandbox_id: first.id } })
      assert.equal(await worker.ended(), 0)
      assert.deepEqual(await worker.running(), [])
    })

    test('gets sandboxes again after its next start, and stops those that run too long', async () => {
      await worker.start({ SANDYARD_DRAIN_SECS: '1' })
      const { id } = await mustCall(world.server, 'get_sandbox_by_name', { params: { name: 'later' } })
      await waitUntil(async () => (await read(id)).status === 'running', LIMIT_MS)
      worker.signal('SIGTERM')
      assert.equal(await worker.ended(), 0)
      assert.equal((await read(id)).status, 'stopped')
    })

    function create(name: string, query: Readonly<Record<string, string>> = {}): Promise<SandboxBody> {
      const body = { name, image: DEMO_IMAGE }
      return mustCall(world.server, 'create_sandbox', { query: { start: 'true', ...query }, body })
    }

    function read(id: string): Promise<SandboxBody> {
      return mustCall(world.server, 'get_sandbox', { params: { sandbox_id: id } })
    }
  })
}
