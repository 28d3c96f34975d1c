import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { asId, type SnapshotId } from '../../src/domain/ids.ts'
import { makeControlPlane } from '../../src/worker/agent/control-plane.ts'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { makeFleetWorld, type FleetWorld } from '../support/fleet-world.ts'
import { runMsb } from '../support/msb.ts'
import { isInOwnNetwork } from '../support/own-network.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

const LIMIT_MS = 60_000

if (isInOwnNetwork(import.meta.filename, 300_000)) {
  describe('a snapshot on a worker without room', { skip: whyNoServer() }, () => {
    let world: FleetWorld
    before(async () => {
      world = await makeFleetWorld()
      await world.join('first')
    })
    after(() => world.close())

    test('is fetched by another worker, which keeps what it needs when the snapshot goes', async () => {
      const { server } = world
      const vcpus = await vcpusOf('first')
      await running({ name: 'source', image: DEMO_IMAGE, resources: { vcpus, memory_mib: 128, disk_size_mib: 256 } })
      await inside('source', 'echo kept >/root/file; chown 33:44 /root/file; rm /etc/passwd; mkdir -m 700 /srv/own')
      const { id } = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'source' } })
      const asked = await mustCall(server, 'create_snapshot', { body: { kind: 'disk', sandbox_id: id, name: 'taken' } })
      const { result } = await waitUntil(async () => {
        const found = await mustCall(server, 'get_snapshot_operation', { params: { operation_id: asked.id } })
        return found.status === 'succeeded' && found
      }, LIMIT_MS)
      const snapshot = asId<SnapshotId>(result?.location.id ?? '')
      const second = await world.join('second')
      const of = { source: 'disk_snapshot', disk_snapshot_ref: { type: 'managed', id: 'taken' } }
      const copy = await running({ name: 'copy', ...of, resources: { vcpus, memory_mib: 128 } })
      assert.deepEqual((await second.running()).map(({ sandbox }) => sandbox), [copy.id]) // prettier-ignore
      const seen = 'cat /root/file; stat -c %u:%g /root/file; ls /etc/passwd 2>/dev/null; stat -c %a /srv/own; hostname'
      assert.equal(await inside('copy', seen), `kept\n33:44\n700\n${copy.slug}\n`)
      await inside('copy', 'echo own >/root/other')

      await mustCall(server, 'delete_snapshot', { params: { snapshot_id: snapshot } })
      await mustCall(server, 'stop_sandbox', { params: { sandbox_id: copy.id } })
      await until(copy.id, 'stopped')
      const { credential } = JSON.parse(readFileSync(join(second.dataDir, 'worker.json'), 'utf8')) as {
        credential: string
      }
      const thief = makeControlPlane({ url: server.url, credential })
      await assert.rejects(thief.fetchSnapshot(snapshot, new AbortController().signal), /404/)
      await mustCall(server, 'start_sandbox', { params: { sandbox_id: copy.id } })
      await until(copy.id, 'running')
      assert.equal(await inside('copy', 'cat /root/file /root/other'), 'kept\nown\n')
    })

    async function vcpusOf(name: string): Promise<number> {
      const listed: readonly { readonly name: string; readonly vcpus: number }[] = JSON.parse(
        await world.operate('list', '--json'),
      )
      return listed.find((worker) => worker.name === name)?.vcpus ?? assert.fail()
    }

    async function running(body: object): Promise<SandboxBody> {
      const { id } = await mustCall(world.server, 'create_sandbox', { query: { start: 'true' }, body })
      return await until(id, 'running')
    }

    async function until(sandbox_id: string, status: SandboxBody['status']): Promise<SandboxBody> {
      return await waitUntil(async () => {
        const sandbox = await mustCall(world.server, 'get_sandbox', { params: { sandbox_id } })
        assert.notEqual(sandbox.status, 'failed', sandbox.last_failure_message ?? '')
        return sandbox.status === status && sandbox
      }, LIMIT_MS)
    }

    async function inside(name: string, script: string): Promise<string> {
      const { stdout, stderr, code } = await runMsb(world.server, ['exec', name, '--', 'sh', '-c', script])
      assert.ok(code === 0 || stderr === '', stderr)
      return stdout
    }
  })
}
