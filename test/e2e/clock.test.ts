import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall } from '../support/api.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeSetClock, whyNoClock, type SetClock } from '../support/set-clock.ts'
import { waitUntil } from '../support/wait.ts'

// The clock of a real server is set while a sandbox runs. Nothing may be billed or ended by that.

describe('a clock that is set', { skip: whyNoServer() || whyNoClock() }, () => {
  let folder: string
  let clock: SetClock
  let server: RealServer
  let id: string
  let startedMs: number
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sandyard-clock-'))
    clock = makeSetClock(join(folder, 'ahead'))
    server = await startServer({ ...clock.env, SANDYARD_SHUTDOWN: 'keep' })
    startedMs = systemClock.monotonicMs()
    const query = { start: 'true', wait_for: 'running', wait_timeout: '30' }
    const lifecycle = { max_duration_secs: 7200, idle_timeout_secs: 3600 }
    const body = { image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 256 }, lifecycle }
    id = (await mustCall(server, 'create_sandbox', { query, body })).id
  })
  after(async () => {
    await call(server, 'delete_sandbox', { params: { sandbox_id: id } })
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  })

  const year = () => {
    const atMs = systemClock.now().getTime()
    return { since: new Date(atMs - 100 * DAY_MS).toISOString(), until: new Date(atMs + 100 * DAY_MS).toISOString() }
  }
  const usedSecs = async (): Promise<number> => {
    const { rows } = await mustCall(server, 'get_sandbox_breakdown', { query: year() })
    return rows.reduce((sum, row) => sum + row.vcpu_seconds, 0)
  }
  /** Waits until the sandbox has been metered for another second, and asserts that it was metered for the true time. */
  async function assertMetered(): Promise<void> {
    const from = await usedSecs()
    await waitUntil(async () => (await usedSecs()) > from + 1)
    const used = await usedSecs()
    const passedSecs = (systemClock.monotonicMs() - startedMs) / 1000
    assert.ok(used <= passedSecs + 1, `${String(used)} s were metered in ${String(passedSecs)} s`)
    assert.ok(used >= from, 'usage went back')
  }
  const statusOf = async () => (await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })).status
  const jumpsLogged = () => server.output().split('clock jumped').length - 1

  for (const [index, days] of [1, -1].entries()) {
    test(`by ${String(days)} d while a sandbox runs bills nothing and ends nothing`, async () => {
      clock.setDaysAhead(days)
      await waitUntil(() => jumpsLogged() > index)
      await assertMetered()
      assert.equal(await statusOf(), 'running')
    })
  }

  test('and that the next process of the server starts with changes no duration either', async () => {
    for (const days of [1, -1, 0]) {
      await server.stop()
      clock.setDaysAhead(days)
      await server.start()
      await assertMetered()
      assert.equal(await statusOf(), 'running')
    }
    assert.equal(server.output().split('was set since the last start').length - 1, 3)
  })

  test('bills the time by which the worker measured the run', async () => {
    const secs = (systemClock.monotonicMs() - startedMs) / 1000
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
    await waitUntil(async () => (await statusOf()) === 'stopped')
    const used = await usedSecs()
    assert.ok(used > 5 && used < secs + 30, `${String(used)} s were billed, and ${String(secs)} s had passed`)
    const events = await mustCall(server, 'list_events', {})
    const stops = events.data.filter(({ event_type }) => event_type === 'sandbox_stopping')
    assert.equal(stops.length, 1)
  })
})

const DAY_MS = 86_400_000
