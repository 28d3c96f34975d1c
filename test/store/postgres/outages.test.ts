import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { asId, type OrgId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { isUnavailable, openDatabase, type Database } from '../../../src/store/postgres/database.ts'
import { startExternalPostgres, type ExternalPostgres } from '../../support/external-postgres.ts'
import { startFaultProxy, type FaultProxy } from '../../support/fault-proxy.ts'
import { onServer } from '../../support/postgres.ts'
import { sendSignal } from '../../support/process-tree.ts'
import { waitUntil } from '../../support/wait.ts'

const ORG = asId<OrgId>('00000000-0000-7000-8000-00000000000a')
const STATEMENT_MS = 1_000
/** How long a busy machine may need to serve statements again. */
const RETURN_LIMIT_MS = 30_000

describe('the database during outages', () => {
  let external: ExternalPostgres
  let proxy: FaultProxy
  let db: Database

  before(async () => {
    external = await startExternalPostgres({ settings: { max_connections: '12', fsync: 'off' } })
    proxy = await startFaultProxy(external.port)
    db = await open()
  })
  after(async () => {
    await db.close()
    await proxy.close()
    await external.close()
  })

  const ask = (): Promise<unknown> => db.asOrg(ORG, (q) => q.query({ text: 'select 1' }))
  const answers = (): Promise<boolean> => ask().then(() => true, () => false) // prettier-ignore
  /**
   * Asks so many times, and resolves with whether all were refused at once: before the event loop turned, so without any
   * wait for a connection or a timer.
   */
  async function areRefusedAtOnce(times: number): Promise<boolean> {
    let hasTurned = false
    const turn = setImmediate(() => {
      hasTurned = true
    })
    const outcomes = await Promise.allSettled(Array.from({ length: times }, ask))
    clearImmediate(turn)
    return !hasTurned && outcomes.every((one) => one.status === 'rejected' && isUnavailable(one.reason))
  }
  function open(): Promise<Database> {
    return openDatabase({
      connectionString: external.url.replace(String(external.port), String(proxy.port)),
      tenantPoolSize: 4,
      systemPoolSize: 4,
      statementTimeoutMs: STATEMENT_MS,
      log: makeLog('silent'),
    })
  }

  test('while the server is gone, statements are refused at once; once it is back, they are served without help', async () => {
    await ask()
    await external.end('SIGKILL')
    await waitUntil(() => areRefusedAtOnce(1))
    assert.ok(await areRefusedAtOnce(10_000), 'a refusal waited')
    await external.start()
    await waitUntil(answers, RETURN_LIMIT_MS)
  })

  test('if the network drops everything, the current statement rejects, and later ones are refused at once', async () => {
    await ask()
    proxy.setMode('swallow')
    await assert.rejects(ask(), isUnavailable)
    await assert.rejects(Promise.all(Array.from({ length: 20 }, ask)), isUnavailable)
    assert.ok(await areRefusedAtOnce(1), 'a refusal waited although the outage is known')
    proxy.setMode('pass')
    proxy.resetAll()
    await waitUntil(answers, RETURN_LIMIT_MS)
  })

  test('a server that accepts no new connections is no outage: requests share the existing ones', async () => {
    await ask()
    sendSignal(external.pid(), 'SIGSTOP') // its sessions continue
    try {
      await Promise.all(Array.from({ length: 200 }, ask))
    } finally {
      sendSignal(external.pid(), 'SIGCONT')
    }
  })

  test('closing does not wait for an unreachable server', async () => {
    const other = await open()
    await other.asOrg(ORG, (q) => q.query({ text: 'select 1' }))
    proxy.setMode('swallow')
    // Time is what this tests: TCP itself would give up the server after 15 minutes, and closing takes one second.
    const fromMs = systemClock.monotonicMs()
    await other.close()
    assert.ok(systemClock.monotonicMs() - fromMs < 60_000)
    proxy.setMode('pass')
    proxy.resetAll()
    await waitUntil(answers, RETURN_LIMIT_MS)
  })

  test('callers beyond the limit are refused, and those that wait get connections in order', async () => {
    const WAITING_LIMIT = 4_096
    const TAKEN = 4
    const mayEnd = Promise.withResolvers<void>()
    let held = 0
    const holders = Array.from({ length: TAKEN }, () =>
      db.asOrg(ORG, () => {
        held += 1
        return mayEnd.promise
      }),
    )
    await waitUntil(
      () => held === TAKEN,
      RETURN_LIMIT_MS,
      () => `${String(held)} of ${String(TAKEN)} connections are held`,
    )
    const served: number[] = []
    const asked = Array.from({ length: WAITING_LIMIT + 100 }, (_, nth) =>
      db.asOrg(ORG, () => Promise.resolve(served.push(nth))),
    )
    const outcomes = Promise.allSettled(asked)
    for (const beyond of asked.slice(WAITING_LIMIT)) await assert.rejects(beyond, isUnavailable)
    assert.equal(served.length, 0)
    mayEnd.resolve()
    await Promise.all([...holders, outcomes])
    assert.deepEqual(served, Array.from({ length: WAITING_LIMIT }, (_, nth) => nth)) // prettier-ignore
  })

  test('a statement waits for a lock no longer than a caller for a connection, and a lock is no outage', async () => {
    await onServer(external.adminUrl, async (admin) => {
      await admin.query('create table hot (id int4)')
      await admin.query('grant select on hot to public')
      await admin.query('begin; lock table hot in access exclusive mode')
      const blocked = db.asOrg(ORG, (q) => q.query({ text: 'select * from hot' }))
      await assert.rejects(blocked, isUnavailable)
      await ask()
      await admin.query('rollback')
    })
  })

  test('if one pool has every connection of the server, it closes one for the other pool', async () => {
    await db.close()
    db = await open()
    await Promise.all(Array.from({ length: 4 }, () => db.asSystem((q) => q.query({ text: 'select pg_sleep(0.1)' }))))
    const others = await takeAll()
    await waitUntil(answers)
    await Promise.all(others.map((client) => client.end()))
  })

  async function takeAll(): Promise<readonly Client[]> {
    const taken: Client[] = []
    for (;;) {
      const client = new Client({ connectionString: external.url })
      try {
        await client.connect()
        taken.push(client)
      } catch {
        return taken // the server has no more
      }
    }
  }
})
