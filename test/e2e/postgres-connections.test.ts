import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../src/lib/clock.ts'
import { startExternalPostgres, type ExternalPostgres } from '../support/external-postgres.ts'
import { noteSurvival, waitForRecovery, assertSurvivesFault } from '../support/fault-invariants.ts'
import { onServer } from '../support/postgres.ts'
import { noteFault } from '../support/reliability.ts'
import { startServer, type RealServer } from '../support/server.ts'

// A PostgreSQL that allows fewer connections than its clients request.

/** The server's connections, three of which are reserved for the superuser (`superuser_reserved_connections`). */
const MAX_CONNECTIONS = 30
const STARVED_MS = 10_000

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
    })
  })
  after(async () => {
    await letGo(others)
    await server.close()
    await external.close()
  })

  test('other clients take every free connection: the server keeps serving all requests and running its loops on those it has', async () => {
    let taken = 0
    const survival = await assertSurvivesFault(server, external.adminUrl, async () => {
      await takeAll(external, others)
      taken = others.length
      const { runningMs } = await waitForRecovery(server) // while no connection is free
      assert.ok(runningMs >= 0)
      await systemClock.sleep(STARVED_MS)
      await letGo(others)
    })
    noteSurvival('other clients take every free connection for 10 s', [survival], taken)
  })

  test('other clients take every connection after a restart: requests are refused, and everything recovers when there are some', async () => {
    const survival = await assertSurvivesFault(server, external.adminUrl, async (load) => {
      await external.end('SIGINT')
      await external.start({ superuser_reserved_connections: String(MAX_CONNECTIONS - 1) })
      const before = load.answers.get(503) ?? 0
      await systemClock.sleep(STARVED_MS)
      assert.ok((load.answers.get(503) ?? 0) > before)
      await external.end('SIGINT')
      await external.start()
    })
    noteSurvival('restarted, and no connection allowed for 10 s', [survival], 1)
  })

  test('with 5 connections for a server that needs 22, it works', async () => {
    await server.stop()
    await external.end('SIGINT')
    await external.start({ superuser_reserved_connections: String(MAX_CONNECTIONS - 5) })
    await server.start()
    const survival = await assertSurvivesFault(server, external.adminUrl, () => systemClock.sleep(5_000))
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
      checked: 'it starts and answers; acknowledged sandboxes exist once, as acknowledged',
      found: `${String(survival.refused)} refused, ${String(survival.asAcknowledged)} of ${String(survival.sandboxes)} sandboxes as acknowledged, slowest request ${String(Math.round(survival.load.slowestMs))} ms`,
    })
  })
})

/** Opens connections as the program's role until the server refuses more. */
async function takeAll({ url }: ExternalPostgres, taken: Client[]): Promise<void> {
  for (;;) {
    const client = new Client({ connectionString: url, application_name: 'somebody else' })
    client.on('error', (error) => void error) // the server's restart ends it
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
