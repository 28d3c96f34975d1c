import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { call, listAll } from '../support/api.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import {
  assertSurvivesFault,
  noteSurvival,
  RECOVERY_LIMIT_MS,
  waitForServedRequests,
} from '../support/fault-invariants.ts'
import { startFaultProxy, type FaultProxy } from '../support/fault-proxy.ts'
import { onServer } from '../support/postgres.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The network between a server and an external PostgreSQL delays, resets and drops connections.

const DELAY_MS = 200
/** The number of requests that are served while the network delays. */
const DELAYED = 30
const BLACK_HOLE_MS = 20_000
/** Six clients that each waited 5 s for a connection would be refused twelve times in this limit, not more often. */
const [REFUSED, REFUSED_LIMIT_MS] = [20, 10_000]
const LOCK_MS = 20_000
const RESETS = 10
/** The number of requests that are served between two resets. */
const SERVED_BETWEEN = 10
const LOST_CREATES = 5
const LOST_COMMITS = 40

describe('an external PostgreSQL behind a bad network', () => {
  let external: ExternalPostgres
  let proxy: FaultProxy
  let server: RealServer

  before(async () => {
    external = await startExternalPostgres()
    proxy = await startFaultProxy(external.port)
    server = await startServer({
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_LOG_LEVEL: 'warn',
      DATABASE_URL: external.url.replace(String(external.port), String(proxy.port)),
      DATABASE_OWNER_URL: external.ownerUrl,
    })
  })
  after(async () => {
    await server.close()
    await proxy.close()
    await external.close()
  })

  test(`${String(DELAY_MS)} ms of delay each way: requests are slow but correct, and none is refused`, async () => {
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      proxy.setDelay(DELAY_MS)
      await waitForServedRequests(load, DELAYED)
      proxy.setDelay(0)
    })
    assert.equal(survival.refused, 0)
    noteSurvival(`200 ms of delay each way to the database for ${String(DELAYED)} requests`, [survival], 1)
  })

  test('connections that are reset in the middle of statements cost some requests a 503 and nothing else', async () => {
    let reset = 0
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      for (let round = 0; round < RESETS; round++) {
        const cut = proxy.resetAll()
        assert.ok(cut > 0, 'no connection was there to be reset')
        reset += cut
        await waitForServedRequests(load, SERVED_BETWEEN)
      }
    })
    noteSurvival('reset of every connection to the database, ten times', [survival], reset)
  })

  test(`a network that drops all bytes for ${String(BLACK_HOLE_MS / 1000)} s: requests end in 503 within their time limit, most of them at once`, async () => {
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      proxy.setMode('swallow')
      await systemClock.sleep(BLACK_HOLE_MS) // longer than every time limit of a request
      const before = load.answers.get(503) ?? 0
      await waitUntil(
        () => (load.answers.get(503) ?? 0) - before > REFUSED,
        REFUSED_LIMIT_MS,
        () => 'requests still wait for a database that is known to be away',
      )
      proxy.setMode('pass')
      proxy.resetAll() // the swallowed bytes never arrive, so the old connections are useless
    })
    noteSurvival('a network that drops all bytes for 20 s, without a FIN', [survival], 1)
  })

  test(`a lock that another session holds on a hot table for ${String(LOCK_MS / 1000)} s: requests that need it get 503, the others are served`, async () => {
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await onServer(external.adminUrl, async (admin) => {
        await admin.query('BEGIN')
        await admin.query('LOCK TABLE runs IN ACCESS EXCLUSIVE MODE')
        await systemClock.sleep(LOCK_MS) // longer than every time limit of a request
        assert.equal((await call(server, 'get_org')).status, 200, 'what needs no lock is served')
        await waitUntil(() => load.hasFailed || (load.answers.get(503) ?? 0) > 0, RECOVERY_LIMIT_MS)
        await admin.query('COMMIT')
      })
    })
    noteSurvival('another session locks the table of runs for 20 s', [survival], 1)
  })

  test('a repeated create whose first commit succeeded without an answer is refused by its name, and the sandbox exists once', async () => {
    for (let round = 0; round < LOST_CREATES; round++) {
      const name = `unsure-${systemRandom.bytes(6).toString('hex')}`
      const body = { name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
      const lostBefore = proxy.lost
      proxy.loseAnswersTo(name) // of one statement, which commits by itself: nothing is placed
      const first = await call(server, 'create_sandbox', { query: { start: 'false' }, body })
      proxy.loseAnswersTo(null)
      assert.equal(proxy.lost, lostBefore + 1)
      assert.equal(first.status, 503, first.text)
      const second = await call(server, 'create_sandbox', { query: { start: 'false' }, body })
      assert.equal(second.status, 409, second.text)
      assert.equal((await listAll(server)).filter((sandbox) => sandbox.name === name).length, 1)
    }
    noteFault({
      area: 'postgresql',
      fault: 'the answer to the commit of a create is lost',
      injected: LOST_CREATES,
      checked: 'the create gets 503, its repetition 409, and the sandbox exists once',
      found: `${String(LOST_CREATES)} of ${String(LOST_CREATES)} as expected`,
    })
  })

  test('answers to commits of transitions are lost under load: each transition is recorded once', async () => {
    const lostBefore = proxy.lost
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      proxy.loseAnswersTo('commit\0')
      await waitUntil(
        () => load.hasFailed || proxy.lost - lostBefore >= LOST_COMMITS,
        60_000,
        () => `${String(proxy.lost - lostBefore)} of ${String(LOST_COMMITS)} answers to commits were lost`,
      )
      proxy.loseAnswersTo(null)
    })
    noteSurvival('the answers to successive commits are lost', [survival], proxy.lost - lostBefore)
  })
})
