import assert from 'node:assert/strict'
import { after, before, beforeEach, describe, test } from 'node:test'
import { asId, type OrgId } from '../../../src/domain/ids.ts'
import { makeLog } from '../../../src/lib/log.ts'
import {
  violatedConstraint,
  isUnavailable,
  openDatabase,
  UnsuitableDatabase,
  type Database,
} from '../../../src/store/postgres/database.ts'
import { makeEmptyDatabase, onServer, type TestDatabase } from '../../support/postgres.ts'
import { waitUntil } from '../../support/wait.ts'

const ALPHA = asId<OrgId>('00000000-0000-7000-8000-00000000000a')
const BETA = asId<OrgId>('00000000-0000-7000-8000-00000000000b')
const log = makeLog('silent')

describe('the database', () => {
  let home: TestDatabase
  let db: Database

  before(async () => {
    home = await makeEmptyDatabase()
    db = await open(home.url)
    await db.asSystem(async (q) => {
      await q.query({
        text: `create table notes (org uuid not null, text text not null, constraint notes_text_key unique (text))`,
      })
      await q.query({ text: `alter table notes enable row level security` })
      await q.query({ text: `alter table notes force row level security` })
      await q.query({
        text: `create policy notes_org on notes using (current_setting('sandyard.org', true) in ('*', org::text))`,
      })
    })
  })
  beforeEach(() => db.asSystem((q) => q.query({ text: 'delete from notes' })))
  after(async () => {
    await db.close()
    await home.close()
  })

  test('an organization sees only its own rows, however connections are shared', async () => {
    await db.asSystem((q) => q.query({ text: `insert into notes values ($1, 'a'), ($2, 'b')`, values: [ALPHA, BETA] }))
    const orgs = Array.from({ length: 40 }, (_, index) => (index % 3 === 0 ? ALPHA : BETA))
    const seen = await Promise.all(
      orgs.map((org) => db.asOrg(org, (q) => q.query<{ org: string }>({ text: 'select org from notes' }))),
    )
    assert.deepEqual(seen.map((answer) => answer.rows.map((row) => row.org)), orgs.map((org) => [org])) // prettier-ignore
  })

  test('an organization can’t write rows of another one', async () => {
    const write = db.asOrg(ALPHA, (q) => q.query({ text: `insert into notes values ($1, 'mine?')`, values: [BETA] }))
    await assert.rejects(write, { code: '42501' })
  })

  test('the stack of a refused statement leads to the code that sent it', async () => {
    async function sendNonsense(): Promise<void> {
      await db.asSystem((q) => q.query({ text: 'select nonsense' }))
    }
    await assert.rejects(
      sendNonsense(),
      (error) => error instanceof Error && /\bsendNonsense\b/.test(error.stack ?? ''),
    )
  })

  test('a transaction of the system that sees only one organization can’t write rows of another one, and the next one sees all', async () => {
    await db.asSystem((q) => q.query({ text: `insert into notes values ($1, 'a'), ($2, 'b')`, values: [ALPHA, BETA] }))
    const write = db.transaction('system', async (tx) => {
      tx.seeOnly(ALPHA)
      void tx.send({ text: `insert into notes values ($1, 'mine?')`, values: [BETA] })
    })
    await assert.rejects(write, { code: '42501' })
    const counted = await db.transaction('system', async (tx) => {
      const all = await tx.query({ text: 'select from notes' })
      tx.seeOnly(ALPHA)
      return [all.rowCount, (await tx.query({ text: 'select from notes' })).rowCount]
    })
    assert.deepEqual(counted, [2, 1])
    assert.equal((await db.asSystem((q) => q.query({ text: 'select from notes' }))).rowCount, 2)
  })

  test('only an organization’s id can become the setting for row-level security', async () => {
    await assert.rejects(
      db.asOrg(asId<OrgId>('*'), (q) => q.query({ text: 'select 1' })),
      /no UUID/,
    )
  })

  test('a connection that serves the same organization again keeps its setting without a statement', async () => {
    await db.close()
    db = await open(home.url, 1)
    const countOf = () =>
      db.asOrg(ALPHA, (q) => q.query<{ query: string }>({ text: `select current_setting('sandyard.org') as query` }))
    await countOf()
    const before = await statementsOf(home)
    await countOf()
    assert.match(before, /current_setting/) // the last statement of the tenants' only connection
    assert.doesNotMatch(await statementsOf(home), /set_config/)
    await db.asOrg(BETA, async (q) => {
      assert.equal((await q.query({ text: `select current_setting('sandyard.org') as org` })).rows[0]?.['org'], BETA)
    })
  })

  test('a transaction writes nothing if its function rejects', async () => {
    const failing = db.transaction(ALPHA, async (tx) => {
      await tx.query({ text: `insert into notes values ($1, 'lost')`, values: [ALPHA] })
      throw new Error('changed its mind')
    })
    await assert.rejects(failing, /changed its mind/)
    assert.equal(await countNotes(), 0)
  })

  test('a transaction that swallows a failed statement rejects instead of losing its writes', async () => {
    const careless = db.transaction(ALPHA, async (tx) => {
      await tx.query({ text: `insert into notes values ($1, 'x')`, values: [ALPHA] })
      await assert.rejects(tx.query({ text: 'select 1 / 0' }))
    })
    await assert.rejects(careless, /rolled back/)
    assert.equal(await countNotes(), 0)
  })

  test('a statement that was only sent is committed with the others, or its error rolls them back', async () => {
    const insert = (text: string) => ({ text: `insert into notes values ($1, $2)`, values: [ALPHA, text] })
    await db.transaction(ALPHA, async (tx) => {
      void tx.send(insert('one'))
      await tx.query({ text: 'select 1 as one', isRead: true })
      void tx.send(insert('two'))
    })
    assert.equal(await countNotes(), 2)
    const failing = db.transaction(ALPHA, async (tx) => {
      await tx.query(insert('three'))
      void tx.send({ text: 'select 1 / 0' })
    })
    await assert.rejects(failing, /division by zero/)
    const behind = db.transaction(ALPHA, async (tx) => {
      await tx.query(insert('three'))
      void tx.send({ text: 'select 1 / 0' })
      await tx.query(insert('four')) // fails only because of the one before it
    })
    await assert.rejects(behind, /division by zero/)
    const slower = db.transaction(ALPHA, async (tx) => {
      const first = async (): Promise<unknown> => await (async () => await tx.query({ text: 'select 1 / 0' }))()
      await Promise.all([first(), tx.query(insert('four'))]) // the second rejection arrives first
    })
    await assert.rejects(slower, /division by zero/)
    const refusing = db.transaction(ALPHA, async (tx) => {
      void tx.send(insert('four'))
      await Promise.reject(new Error('refused'))
    })
    await assert.rejects(refusing, /refused/)
    assert.equal(await countNotes(), 2)
  })

  test('a transaction that deadlocks is retried, and both sides commit', async () => {
    await db.asSystem((q) => q.query({ text: `insert into notes values ($1, 'one'), ($1, 'two')`, values: [ALPHA] }))
    const gate = makeGate(2)
    let runs = 0
    let victims = 0
    const swap = (...opposite: readonly string[]) => {
      let order = opposite
      return db.transaction('system', async (tx) => {
        const [first, second] = order
        order = ['one', 'two'] // when retried, both transactions use this order, so that they don't deadlock again
        runs++
        await tx.query({ text: 'update notes set org = org where text = $1', values: [first] })
        await gate.pass()
        try {
          await tx.query({ text: 'update notes set org = org where text = $1', values: [second] })
        } catch (error) {
          victims++
          throw error
        }
      })
    }
    await Promise.all([swap('one', 'two'), swap('two', 'one')])
    // Each session checks for deadlocks by itself, so PostgreSQL may abort both transactions.
    assert.ok(victims === 1 || victims === 2)
    assert.equal(runs, 2 + victims)
  })

  test('a query handle is refused after its function has ended, because its connection may serve another caller', async () => {
    const leaked = await db.asOrg(ALPHA, async (q) => Promise.resolve({ q }))
    await assert.rejects(leaked.q.query({ text: 'select 1' }), /released/)
  })

  test('a violated constraint is reported by name, also if the error is wrapped', async () => {
    const twice = db.asSystem((q) =>
      q.query({ text: `insert into notes values ($1, 'x'), ($1, 'x')`, values: [ALPHA] }),
    )
    const error: unknown = await twice.then(() => null, (reason: unknown) => reason) // prettier-ignore
    assert.equal(violatedConstraint(error), 'notes_text_key')
    assert.equal(violatedConstraint(new Error('the note could not be written', { cause: error })), 'notes_text_key')
    assert.equal(isUnavailable(error), false)
    assert.equal(violatedConstraint(new Error('notes_text_key')), null)
  })

  test('a cut connection is reported as unavailable, and the next statement gets a new one', async () => {
    const cut = db.asOrg(ALPHA, async (q) => {
      const { rows } = await q.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
      await Promise.all([
        q.query({ text: 'select pg_sleep(60)' }),
        onServer(home.adminUrl, (admin) => admin.query('select pg_terminate_backend($1)', [rows[0]?.pid])),
      ])
    })
    await assert.rejects(cut, isUnavailable)
    await Promise.all(Array.from({ length: 10 }, () => db.asOrg(ALPHA, (q) => q.query({ text: 'select 1' }))))
  })

  test('a statement that exceeds its time limit is reported as unavailable', async () => {
    const hurried = await openDatabase({
      connectionString: home.url,
      tenantPoolSize: 1,
      systemPoolSize: 1,
      statementTimeoutMs: 1_000, // the statements of opening must stay below it on a busy machine
      log,
    })
    await assert.rejects(hurried.asSystem((q) => q.query({ text: 'select pg_sleep(60)' })), isUnavailable) // prettier-ignore
    await hurried.close()
  })

  test('the pools tell how many connections are in use, how many callers wait, and why calls got none', async () => {
    const own = await openDatabase({
      connectionString: home.url,
      tenantPoolSize: 1,
      systemPoolSize: 1,
      statementTimeoutMs: 10_000,
      log,
    })
    const [release, tenants] = [Promise.withResolvers<undefined>(), () => own.poolUse()[0]]
    const holding = own.asOrg(ALPHA, () => release.promise)
    await waitUntil(() => tenants()?.inUse === 1)
    const waiting = own.asOrg(ALPHA, (q) => q.query({ text: 'select 1' }))
    assert.deepEqual([tenants()?.name, tenants()?.max, tenants()?.waiting], ['tenants', 1, 1])
    await assert.rejects(waiting, isUnavailable) // no connection becomes free in time
    assert.deepEqual(tenants()?.rejected, { outage: 0, timeout: 1, queue_full: 0 })
    release.resolve(undefined)
    await holding
    await own.close()
  })

  test('a prepared statement works again on the next connection after its table was changed', async () => {
    await db.close()
    db = await open(home.url, 1)
    const read = () => db.asOrg(ALPHA, (q) => q.query({ name: 'notes_all', text: 'select * from notes' }))
    await read()
    await db.asSystem((q) => q.query({ text: 'alter table notes add column extra int4' }))
    await assert.rejects(read())
    await read()
  })

  test('integers are read as exact numbers or rejected, times as dates, decimals as text', async () => {
    const { rows } = await db.asSystem((q) =>
      q.query({
        text: `select 9007199254740991::int8 as big, '2026-11-21T10:00:00.123Z'::timestamptz as at, 1.10::numeric as price,
                      '{"a": [1]}'::jsonb as body, '{"a":  1}'::json::text as raw, '2026-11-21'::date as day`,
      }),
    )
    assert.deepEqual(rows, [
      {
        big: 2 ** 53 - 1,
        at: new Date('2026-11-21T10:00:00.123Z'),
        price: '1.10',
        body: { a: [1] },
        raw: '{"a":  1}',
        day: '2026-11-21',
      },
    ])
    await assert.rejects(
      db.asSystem((q) => q.query({ text: 'select 9007199254740993::int8' })),
      /2\^53/,
    )
  })

  test('a role to which row-level security does not apply is refused', async () => {
    await assert.rejects(open(home.adminUrl), UnsuitableDatabase)
  })

  test('an unreachable server is reported as unavailable', async () => {
    await assert.rejects(open('postgresql://a:b@127.0.0.1:1/none'), isUnavailable)
  })

  async function countNotes(): Promise<number> {
    const { rows } = await db.asSystem((q) => q.query<{ count: number }>({ text: 'select count(*) from notes' }))
    return rows[0]?.count ?? -1
  }
})

function open(connectionString: string, tenantPoolSize = 4): Promise<Database> {
  return openDatabase({ connectionString, tenantPoolSize, systemPoolSize: 4, statementTimeoutMs: 10_000, log })
}

/** The last statement of each other connection to this database. */
async function statementsOf(home: TestDatabase): Promise<string> {
  return onServer(home.adminUrl, async (admin) => {
    const { rows } = await admin.query<{ query: string }>(
      `select query from pg_stat_activity where datname = current_database() and usename = 'sandyard_test' order by query_start`,
    )
    return rows.map((row) => row.query).slice(1).join('\n') // prettier-ignore
  })
}

function makeGate(size: number): { pass(): Promise<void> } {
  let arrived = 0
  let open: () => void = () => undefined
  const opened = new Promise<void>((resolve) => (open = resolve))
  return {
    pass() {
      if (++arrived >= size) open()
      return opened
    },
  }
}
