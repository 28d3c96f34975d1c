import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { crashMachine } from '../support/crash-machine.ts'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// kill -9 of the server, its worker and its PostgreSQL in the middle of snapshots, half of the time with all sandboxes and mounts, as in a
// crash of the machine.

/** SANDYARD_CRASH_ROUNDS overrides the number. */
const ROUNDS = Number(process.env['SANDYARD_CRASH_ROUNDS'] ?? '6')
const MOST_MS = 250
const LIMIT_MS = 30_000

describe('kill -9 in the middle of snapshots', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer({})
  })
  after(() => server.close())

  test(`${String(ROUNDS)} times: each snapshot becomes whole, its sandbox can write, and deletions leave nothing`, async () => {
    const { id } = await running({
      name: 'source',
      image: DEMO_IMAGE,
      resources: { memory_mib: 128, disk_size_mib: 256 },
    })
    let made = 0
    let since: string | null = null
    for (let round = 1; round <= ROUNDS; round++) {
      await inside('source', `head -c 20000000 /dev/urandom >/root/random; echo ${String(round)} >/root/round`)
      const hash = await inside('source', 'sha256sum /root/random')
      const name = `round-${String(round)}`
      const asked = call(server, 'create_snapshot', { body: { kind: 'disk', sandbox_id: id, name } }).catch(() => null)
      await systemClock.sleep(randomBelow(systemRandom, MOST_MS))
      await server.kill9()
      const isMachine = round % 2 === 0
      if (isMachine) await crashMachine(server.dataDir)
      const answer = await asked
      await server.start()
      if (isMachine) await startAgain(id)
      assert.equal(await inside('source', 'echo still >/root/writes; sync; cat /root/writes'), 'still\n')
      assert.equal(await inside('source', 'sha256sum /root/random'), hash)
      since = await firstMetricOf(id, since)
      if (answer === null) continue // nobody was told that it would be made
      assert.ok(!answer.isRefusal)
      made += 1
      const operation = await waitUntil(async () => {
        const found = await mustCall(server, 'get_snapshot_operation', { params: { operation_id: answer.body.id } })
        return found.completed_at !== undefined && found
      }, LIMIT_MS)
      assert.equal(operation.status, 'succeeded', operation.error?.message)
      const ref = { type: 'managed', id: name }
      const copy = await running({
        name,
        source: 'disk_snapshot',
        disk_snapshot_ref: ref,
        resources: { memory_mib: 128 },
      })
      assert.equal(await inside(name, 'cat /root/round; sha256sum /root/random'), `${String(round)}\n${hash}`)
      await mustCall(server, 'delete_sandbox', { params: { sandbox_id: copy.id } })
    }
    // Also those that nobody was told about, which may become complete only now.
    const folder = join(server.dataDir, 'sandboxes/disks/snapshots')
    await waitUntil(async () => {
      const { data } = await mustCall(server, 'list_snapshots', {})
      for (const { location } of data)
        await mustCall(server, 'delete_snapshot', { params: { snapshot_id: location.id } })
      return data.length === 0 && readdirSync(folder).length === 0
    }, LIMIT_MS)
    noteFault({
      area: 'data',
      fault:
        'kill -9 of the server, its worker and its PostgreSQL in the middle of a snapshot and of samples; half of them with all sandboxes and mounts',
      injected: ROUNDS,
      checked:
        'each snapshot that was asked for becomes whole; the sandbox can write; its metrics are whole; deletions leave no data',
      found: `${String(made)} snapshots were asked for in time, and every one was restored`,
    })
  })

  async function running(body: object): Promise<SandboxBody> {
    const { id } = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    return await waitUntil(async () => {
      const sandbox = await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
      assert.notEqual(sandbox.status, 'failed', sandbox.last_failure_message ?? '')
      return sandbox.status === 'running' && sandbox
    }, LIMIT_MS)
  }

  /** Checks that the metrics of a sandbox are whole and go back to `since`. Resolves with where they begin. */
  async function firstMetricOf(sandbox_id: string, since: string | null): Promise<string | null> {
    const { data } = await mustCall(server, 'read_sandbox_metrics', { params: { sandbox_id }, query: { step: '1' } })
    const times = data.map(({ at }) => at)
    assert.deepEqual(times, [...new Set(times)].toSorted(), 'each second once, in order')
    if (since !== null) assert.equal(times[0], since, 'none is lost')
    return times[0] ?? null
  }

  /** Starts a sandbox whose run ended with the machine. */
  async function startAgain(sandbox_id: string): Promise<void> {
    const isStatus = (status: SandboxBody['status']) => async () =>
      (await mustCall(server, 'get_sandbox', { params: { sandbox_id } })).status === status
    await waitUntil(isStatus('failed'), LIMIT_MS)
    await mustCall(server, 'start_sandbox', { params: { sandbox_id } })
    await waitUntil(isStatus('running'), LIMIT_MS)
  }

  async function inside(name: string, script: string): Promise<string> {
    const { stdout, stderr, code } = await runMsb(server, ['exec', name, '--', 'sh', '-c', script])
    assert.equal(code, 0, stderr)
    return stdout
  }
})
