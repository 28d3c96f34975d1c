import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { UnsuitableDatabase } from '../../../src/store/postgres/database.ts'
import { migrate, readMigrations } from '../../../src/store/postgres/migrate.ts'
import { dumpSchema } from '../../../src/store/postgres/schema-dump.ts'
import { lockSchema, type SchemaLock } from '../../../src/store/postgres/schema-lock.ts'
import { queryableOn } from '../../../src/store/postgres/session.ts'
import { makeEmptyDatabase, makeTestDatabase, onServer, type TestDatabase } from '../../support/postgres.ts'
import { waitUntil } from '../../support/wait.ts'

const log = makeLog('silent')
const OF_HOLDS = `where application_name = 'sandyard schema' and datname = current_database()`
const OURS = join(import.meta.dirname, '..', '..', '..', 'migrations')

describe('migrations', () => {
  let home: TestDatabase
  let dir: string

  beforeEach(async () => {
    home = await makeEmptyDatabase()
    dir = await mkdtemp(join(tmpdir(), 'sandyard-migrations-'))
    await write('0001_notes', `create table notes (org text not null); insert into notes values ('a');`)
    await write(
      '0002_rows',
      `alter table notes enable row level security; alter table notes force row level security;
      create policy notes_org on notes using (current_setting('sandyard.org', true) in ('*', org));`,
    )
    await write('0003_copy', `insert into notes select org || 'b' from notes;`)
  })
  afterEach(async () => {
    await home.close()
    await rm(dir, { recursive: true, force: true })
  })

  test('each migration runs once, in order, and sees all rows although row-level security applies to its role', async () => {
    const first = await migrate(home.url, dir, log)
    assert.deepEqual(first, { applied: ['0001_notes', '0002_rows', '0003_copy'], version: 3 })
    assert.deepEqual(await migrate(home.url, dir, log), { applied: [], version: 3 })
    assert.deepEqual(await notes(), ['a', 'ab'])
  })

  test('with 20 processes at the same time, each migration runs in one of them', async () => {
    const runs = await Promise.all(Array.from({ length: 20 }, () => migrate(home.url, dir, log)))
    assert.deepEqual(runs.flatMap((run) => run.applied).sort(), ['0001_notes', '0002_rows', '0003_copy']) // prettier-ignore
    assert.deepEqual(await notes(), ['a', 'ab'])
  })

  test('a failed migration is rolled back, and earlier ones stay', async () => {
    await write('0004_bad', `insert into notes values ('half'); select 1 / 0;`)
    await assert.rejects(migrate(home.url, dir, log), /0004_bad failed/)
    assert.deepEqual(await notes(), ['a', 'ab'])
    await write('0004_bad', `insert into notes values ('whole');`)
    assert.deepEqual((await migrate(home.url, dir, log)).applied, ['0004_bad'])
  })

  test('an applied file that was changed is refused', async () => {
    await migrate(home.url, dir, log)
    await write('0002_rows', 'select 1')
    await assert.rejects(migrate(home.url, dir, log), (error) => error instanceof UnsuitableDatabase && error.message.includes('0002_rows')) // prettier-ignore
  })

  test('an older program runs on a schema with additions of a newer one', async () => {
    await migrate(home.url, dir, log)
    await rm(join(dir, '0003_copy.sql'))
    assert.deepEqual(await migrate(home.url, dir, log), { applied: [], version: 2 })
    await using hold = await holdIt()
    assert.equal(hold.isHeld, true)
  })

  test('an older program refuses a schema with a breaking migration of a newer one', async () => {
    await write('0004_split', '-- breaking: notes become two tables\ncreate table other_notes ();')
    await migrate(home.url, dir, log)
    await rm(join(dir, '0004_split.sql'))
    const isRefused = (error: unknown) =>
      error instanceof UnsuitableDatabase &&
      /newer than this program.*0004_split \(notes become two/.test(error.message)
    await assert.rejects(migrate(home.url, dir, log), isRefused)
    await assert.rejects(holdIt, isRefused)
  })

  test('while a process uses the schema, an additive migration runs and a breaking one is refused; without one, both run', async () => {
    await migrate(home.url, dir, log)
    const hold = await holdIt()
    await write('0004_more', 'create table more ();')
    assert.deepEqual((await migrate(home.url, dir, log)).applied, ['0004_more'])
    await write('0005_split', '-- breaking: notes become two tables\ncreate table other_notes ();')
    const isRefused = (error: unknown) =>
      error instanceof UnsuitableDatabase && /0005_split must run alone \(notes become two/.test(error.message)
    await assert.rejects(migrate(home.url, dir, log), isRefused)
    assert.equal(await hasTable('other_notes'), false)
    await hold[Symbol.asyncDispose]()
    assert.deepEqual((await migrate(home.url, dir, log)).applied, ['0005_split'])
  })

  test('a refused breaking migration names the running processes', async () => {
    await write(
      '0004_replicas',
      `create table replicas (id text, url text, version text, started_at timestamptz);
      insert into replicas values ('r1', 'http://10.0.0.1:8080', '0.1.0', now());`,
    )
    await migrate(home.url, dir, log)
    await using _hold = await holdIt()
    await write('0005_split', '-- breaking: notes become two tables\nselect 1;')
    await assert.rejects(migrate(home.url, dir, log), /database: http:\/\/10\.0\.0\.1:8080 \(release 0\.1\.0\)/)
  })

  test('with many processes at the same time, one runs a breaking migration, and all of them serve', async () => {
    await write('0004_split', '-- breaking: notes become two tables\ncreate table other_notes ();')
    const runs = await Promise.all(
      Array.from({ length: 8 }, async () => {
        const result = await migrate(home.url, dir, log)
        return { result, hold: await holdIt() }
      }),
    )
    assert.equal(runs.filter(({ result }) => result.applied.includes('0004_split')).length, 1)
    assert.ok(runs.every(({ hold }) => hold.isHeld))
    await Promise.all(runs.map(({ hold }) => hold[Symbol.asyncDispose]()))
  })

  test('a process that lost its schema lock acquires it again, and stops if the schema was changed incompatibly', async () => {
    await migrate(home.url, dir, log)
    await using hold = await holdIt()
    const before = await holders()
    await cutHolds()
    // It may be held again before anybody sees that it was lost, so the connection tells.
    await waitUntil(async () => (await holders()).some((pid) => !before.includes(pid)))
    await waitUntil(() => hold.isHeld)
    assert.equal(hold.incompatible.aborted, false)
    await onServer(home.adminUrl, (admin) =>
      admin.query(
        `insert into sandyard_migrations (id, name, sha256, breaking) values (4, '0004_split', '', 'two tables')`,
      ),
    )
    await cutHolds()
    await waitUntil(() => hold.incompatible.aborted)
    assert.ok(hold.incompatible.reason instanceof UnsuitableDatabase)
    assert.equal(hold.isHeld, false)
  })

  test('a database of a release that did not know breaking migrations gets the column `breaking`', async () => {
    await migrate(home.url, dir, log)
    await onServer(home.adminUrl, (admin) => admin.query('alter table sandyard_migrations drop column breaking'))
    await write('0004_split', '-- breaking: notes become two tables\nselect 1;')
    assert.deepEqual((await migrate(home.url, dir, log)).applied, ['0004_split'])
  })

  test('a superuser is refused before the schema changes', async () => {
    await assert.rejects(migrate(home.adminUrl, dir, log), UnsuitableDatabase)
    await onServer(home.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ found: string | null }>(
        `select to_regclass('sandyard_migrations')::text as found`,
      )
      assert.equal(rows[0]?.found, null)
    })
  })

  test('a gap in the numbers or a malformed name is refused before anything is applied', async () => {
    await write('0005_gap', 'select 1')
    await assert.rejects(readMigrations(dir), /without gaps/)
    await rm(join(dir, '0005_gap.sql'))
    await write('0004_Name with spaces', 'select 1')
    await assert.rejects(readMigrations(dir), /NNNN_name/)
  })

  async function holdIt(): Promise<SchemaLock> {
    return lockSchema({ connectionString: home.url, migrations: await readMigrations(dir), clock: systemClock, log })
  }

  /** The connections of schema locks. */
  async function holders(): Promise<readonly number[]> {
    return onServer(home.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ pid: number }>(`select pid from pg_stat_activity ${OF_HOLDS}`)
      return rows.map(({ pid }) => pid)
    })
  }

  async function cutHolds(): Promise<void> {
    await onServer(home.adminUrl, (admin) =>
      admin.query(`select pg_terminate_backend(pid) from pg_stat_activity ${OF_HOLDS}`),
    )
  }

  function hasTable(name: string): Promise<boolean> {
    return onServer(home.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ found: string | null }>('select to_regclass($1)::text as found', [name])
      return rows[0]?.found !== null
    })
  }

  function write(name: string, sql: string): Promise<void> {
    return writeFile(join(dir, `${name}.sql`), sql)
  }

  function notes(): Promise<readonly string[]> {
    return onServer(home.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ org: string }>('select org from notes order by org')
      return rows.map((row) => row.org)
    })
  }
})

describe('the schema', () => {
  test('its dump is the same for every migrated database and contains every table', async () => {
    const [one, two] = [await makeTestDatabase(), await makeTestDatabase()]
    const dumps = await Promise.all([one, two].map(dumpOf))
    assert.equal(dumps[0], dumps[1])
    const { rows } = await onServer(one.adminUrl, (admin) =>
      admin.query<{ name: string }>(`select tablename as name from pg_tables where schemaname = 'public'`),
    )
    for (const { name } of rows)
      assert.match(dumps[0] ?? '', new RegExp(`^CREATE (?:UNLOGGED )?TABLE ${name} \\(`, 'm'))
    await Promise.all([one.close(), two.close()])
  })

  test('every table with an organization has row-level security, also for its owner', async () => {
    const home = await makeTestDatabase()
    const { rows } = await onServer(home.adminUrl, (admin) =>
      admin.query<{ name: string }>(
        `select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'org_id'
          where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
            and not (c.relrowsecurity and c.relforcerowsecurity and exists (select from pg_policy p where p.polrelid = c.oid))`,
      ),
    )
    assert.deepEqual(rows, [])
    await home.close()
  })

  test('schema.sql matches the migrations; "sandyard migrate --dump" writes it', async () => {
    const home = await makeTestDatabase()
    assert.equal(await readFile(join(OURS, '..', 'schema.sql'), 'utf8'), await dumpOf(home))
    await home.close()
  })
})

async function dumpOf(home: TestDatabase): Promise<string> {
  const client = new Client({ connectionString: home.url })
  await client.connect()
  const dump = await dumpSchema(queryableOn(client))
  await client.end()
  return dump
}
