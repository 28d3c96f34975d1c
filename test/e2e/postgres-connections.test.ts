import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../src/lib/clock.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import {
  assertSurvivesFault,
  noteSurvival,
  waitForRecovery,
  waitForServedRequests,
} from '../support/fault-invariants.ts'
import { onServer } from '../support/postgres.ts'
import { noteFault } from '../support/reliability.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// An external PostgreSQL that allows fewer connections than the program and other clients request.

/** `max_connections` of PostgreSQL. Three of them are reserved for superusers (`superuser_reserved_connections`). */
const MAX_CONNECTIONS = 30
const STARVED_MS = 10_000
/** The number of requests that the server must serve with few connections. */
const SERVED = 200

describe('an external PostgreSQL without connections', () => {
  let external: ExternalPostgres
  let server: RealServer
  const others: Client[] = []

  before(async () => {
    external = await startExternalPostgres({ settings: { max_connections: String(MAX_CONNECTIONS) } })
    server = await startServer({
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_LOG_LEVEL: 'warn',
      DATABASE_URL: external.url,
      DATABASE_OWNER_URL: external.ownerUrl,
    })
  })
  after(async () => {
    await letGo(others)
    await server.close()
    await external.close()
  })

  test('other clients take every free connection: the server serves all requests and runs its loops on the connections that it has', async () => {
    let taken = 0
    const survival = await assertSurvivesFault(server, external.adminUrl, async () => {
      await takeAll(external, others)
      taken = others.length
      await waitForRecovery(server) // other clients still hold every other connection
      await systemClock.sleep(STARVED_MS)
      await letGo(others)
    })
    noteSurvival('other clients take every free connection for 10 s', [survival], taken)
  })

  test('other clients take every connection after PostgreSQL restarts: requests are refused, and everything recovers once connections are free', async () => {
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await external.end('SIGINT')
      await external.start({ superuser_reserved_connections: String(MAX_CONNECTIONS - 1) })
      const before = load.answers.get(503) ?? 0
      await systemClock.sleep(STARVED_MS)
      await waitUntil(() => load.hasFailed || (load.answers.get(503) ?? 0) > before, 60_000)
      await external.end('SIGINT')
      await external.start()
    })
    noteSurvival('restarted, and no connection allowed for 10 s', [survival], 1)
  })

  test('a server that is configured for 22 connections works with 5', async () => {
    await server.stop()
    await external.end('SIGINT')
    await external.start({ superuser_reserved_connections: String(MAX_CONNECTIONS - 5) })
    await server.start()
    const survival = await assertSurvivesFault(server, external.adminUrl, (load) => waitForServedRequests(load, SERVED))
    const held = await onServer(external.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ count: string }>(
        `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sandyard%'`,
      )
      return Number(rows[0]?.count)
    })
    assert.ok(held <= 5, `${String(held)} are held`)
    noteFault({
      area: 'postgresql',
      fault: '5 connections for a server that needs 22',
      injected: 1,
      checked: 'the server starts and answers; each acknowledged sandbox exists once, in its acknowledged state',
      found: `${String(survival.refused)} refused, ${String(survival.asAcknowledged)} of ${String(survival.sandboxes)} sandboxes as acknowledged, slowest request ${String(Math.round(survival.load.slowestMs))} ms`,
    })
  })
})

/** Opens connections with the program's role until PostgreSQL refuses more. */
async function takeAll({ url }: ExternalPostgres, taken: Client[]): Promise<void> {
  for (;;) {
    const client = new Client({ connectionString: url, application_name: 'somebody else' })
    client.on('error', (error) => void error) // the restart of PostgreSQL ends the connection
    try {
      await client.connect()
      taken.push(client)
    } catch {
      return // no connection is left
    }
  }
}

async function letGo(taken: Client[]): Promise<void> {
  await Promise.all(taken.splice(0).map((client) => client.end()))
}
