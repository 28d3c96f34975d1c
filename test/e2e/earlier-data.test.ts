import assert from 'node:assert/strict'
import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { listAll, mustCall } from '../support/api.ts'
import { runProgram } from '../support/program.ts'
import { startServer } from '../support/server.ts'

// The data of each landed version, from test/fixtures/data (setup/data-fixture.mjs makes them), upgraded to today's.

const FIXTURES = join(import.meta.dirname, '../fixtures/data')
const versions = readdirSync(FIXTURES).sort()

for (const name of versions)
  test(`the data of migration ${name.slice(0, 4)} is restored and upgraded, and clients find it as it was`, async () => {
    const root = mkdtempSync(join(tmpdir(), 'sandyard-earlier-data-'))
    chmodSync(root, 0o711)
    const dataDir = join(root, 'data')
    try {
      const restored = await runProgram(['restore', join(FIXTURES, name), '--data-dir', dataDir], {})
      assert.equal(restored.code, 0, restored.output)
      assert.match(restored.output, /1 sandboxes ran then/)
      const server = await startServer({
        SANDYARD_DATA_DIR: dataDir,
        SANDYARD_DRIVER: 'simulated',
        SANDYARD_STOP_GRACE_MS: '200',
      })
      try {
        const caller = { url: server.url, key: 'key-of-the-fixture' }
        const sandboxes = await listAll(caller)
        assert.deepEqual(sandboxes.map((one) => `${one.name} ${one.status}`).toSorted(), [
          'running failed',
          'stopped stopped',
        ])
        const stopped = await mustCall(caller, 'get_sandbox_by_name', { params: { name: 'stopped' } })
        assert.deepEqual(stopped.spec?.labels, { kept: 'stopped' })
        const volumes = await mustCall(caller, 'list_volumes')
        assert.ok(volumes.some((volume) => volume.name === 'data'))
        const events = (await mustCall(caller, 'list_events', { query: { limit: '100' } })).data
        for (const type of ['sandbox_created', 'sandbox_deleted', 'volume_created'])
          assert.ok(events.some(({ event_type }) => event_type === type), type) // prettier-ignore
      } finally {
        await server.close()
      }
    } finally {
      rmSync(root, { recursive: true, force: true })
    }
  })
