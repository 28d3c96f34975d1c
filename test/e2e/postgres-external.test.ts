import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call } from '../support/api.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import { noteSurvival, assertSurvivesFault, type SurvivalResult } from '../support/fault-invariants.ts'
import { onServer } from '../support/postgres.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'
import { waitUntil } from '../support/wait.ts'

// An external PostgreSQL is restarted or refuses writes. The program doesn't start it; the test does, as its operator
// would.

const ROUNDS = 2
const AWAY_MS = 3_000
/** How many requests are refused and how many are served before writes are allowed again. */
const [REFUSED, SERVED] = [300, 20]
/** The most log lines of an outage in one window of the log's rate limit, however many requests it affects. Measured: 22 to 55. */
const LINES_MOST = 75
const WINDOW_MS = 10_000

describe('an external PostgreSQL', () => {
  let external: ExternalPostgres
  let server: RealServer

  before(async () => {
    external = await startExternalPostgres()
    server = await startServer({
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_LOG_LEVEL: 'warn',
      DATABASE_URL: external.url,
      DATABASE_OWNER_URL: external.ownerUrl,
    })
  })
  after(async () => {
    await server.close()
    await external.close()
  })

  for (const [signal, words] of [
    ['SIGINT', 'fast restart'],
    ['SIGQUIT', 'immediate restart'],
    ['SIGKILL', 'kill -9'],
  ] as const) {
    test(`${words}: requests are refused at once while PostgreSQL is down, and everything recovers when it is back`, async () => {
      const survivals: SurvivalResult[] = []
      for (let round = 0; round < ROUNDS; round++) {
        survivals.push(
          await assertSurvivesFault(server, external.adminUrl, async () => {
            const saidBefore = linesOf(server)
            const endedMs = systemClock.monotonicMs()
            await external.end(signal)
            await systemClock.sleep(AWAY_MS)
            const fromMs = systemClock.monotonicMs()
            const [api, ready] = await Promise.all([call(server, 'list_sandboxes'), fetch(`${server.url}/readyz`)])
            assert.deepEqual([api.status, ready.status], [503, 503])
            const refusedMs = systemClock.monotonicMs() - fromMs
            assert.ok(refusedMs < 5_000 * TIMEOUT_FACTOR, 'a database that is known to be away was waited for')
            await external.start()
            const said = linesOf(server) - saidBefore
            // a busy disk can make the end and the start of PostgreSQL take long
            const awayMs = systemClock.monotonicMs() - endedMs
            const windows = 1 + Math.ceil(awayMs / WINDOW_MS) // a message may have begun its window before
            assert.ok(
              said < LINES_MOST * windows,
              `${String(said)} lines were logged of an outage of ${String(awayMs)} ms`,
            )
          }),
        )
      }
      noteSurvival(`${words} of an external PostgreSQL that is away for 3 s`, survivals, ROUNDS)
    })
  }

  test('PostgreSQL is read-only for a while, as in a failover: reads are served, writes are refused, and everything recovers', async () => {
    const setReadOnly = (value: 'on' | 'off') =>
      onServer(external.adminUrl, async (admin) => {
        await admin.query('SET default_transaction_read_only = off')
        await admin.query(`ALTER SYSTEM SET default_transaction_read_only = ${value}`)
        await admin.query('SELECT pg_reload_conf()')
      })
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await setReadOnly('on')
      const count = (status: number): number => load.answers.get(status) ?? 0
      const [refused, served] = [count(503), count(200)]
      await waitUntil(
        () => load.hasFailed || (count(503) - refused >= REFUSED && count(200) - served >= SERVED),
        60_000,
        () => `${String(count(503) - refused)} requests are refused, ${String(count(200) - served)} served`,
      )
      await setReadOnly('off')
    })
    noteSurvival(`an external PostgreSQL refuses writes until ${String(REFUSED)} requests are refused`, [survival], 1)
  })
})

function linesOf(server: RealServer): number {
  return server.output().split('\n').length
}
