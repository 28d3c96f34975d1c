import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { Client } from 'pg'
import { makeLog } from '../../src/lib/log.ts'
import { UnsuitableDatabase } from '../../src/store/database.ts'
import { migrate, readMigrations } from '../../src/store/migrate.ts'
import { dumpSchema } from '../../src/store/schema-dump.ts'
import { queryableOn } from '../../src/store/session.ts'
import { makeEmptyDatabase, makeTestDatabase, onServer, type TestDatabase } from '../support/postgres.ts'

const log = makeLog('silent')
const OURS = join(import.meta.dirname, '..', '..', 'migrations')

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

  test('each migration is applied once, in order, and sees all rows though row-level security binds its role', async () => {
    const first = await migrate(home.url, dir, log)
    assert.deepEqual(first, { applied: ['0001_notes', '0002_rows', '0003_copy'], version: 3 })
    assert.deepEqual(await migrate(home.url, dir, log), { applied: [], version: 3 })
    assert.deepEqual(await notes(), ['a', 'ab'])
  })

  test('of 20 starters at once each migration runs in one', async () => {
    const runs = await Promise.all(Array.from({ length: 20 }, () => migrate(home.url, dir, log)))
    assert.deepEqual(runs.flatMap((run) => run.applied).sort(), ['0001_notes', '0002_rows', '0003_copy']) // prettier-ignore
    assert.deepEqual(await notes(), ['a', 'ab'])
  })

  test('a migration that fails leaves nothing of itself, and those before it stay', async () => {
    await write('0004_bad', `insert into notes values ('half'); select 1 / 0;`)
    await assert.rejects(migrate(home.url, dir, log), /0004_bad failed/)
    assert.deepEqual(await notes(), ['a', 'ab'])
    await write('0004_bad', `insert into notes values ('whole');`)
    assert.deepEqual((await migrate(home.url, dir, log)).applied, ['0004_bad'])
  })

  test('a changed file that was applied before is refused', async () => {
    await migrate(home.url, dir, log)
    await write('0002_rows', 'select 1')
    await assert.rejects(migrate(home.url, dir, log), (error) => error instanceof UnsuitableDatabase && error.message.includes('0002_rows')) // prettier-ignore
  })

  test('a schema that is newer than the program is refused', async () => {
    await migrate(home.url, dir, log)
    await rm(join(dir, '0003_copy.sql'))
    await assert.rejects(migrate(home.url, dir, log), (error) => error instanceof UnsuitableDatabase && error.message.includes('newer')) // prettier-ignore
  })

  test('a superuser changes nothing and is refused', async () => {
    await assert.rejects(migrate(home.adminUrl, dir, log), UnsuitableDatabase)
    await onServer(home.adminUrl, async (admin) => {
      const { rows } = await admin.query<{ found: string | null }>(
        `select to_regclass('sandyard_migrations')::text as found`,
      )
      assert.equal(rows[0]?.found, null)
    })
  })

  test('a gap in the numbers or a name of another shape is refused before anything is applied', async () => {
    await write('0005_gap', 'select 1')
    await assert.rejects(readMigrations(dir), /without gaps/)
    await rm(join(dir, '0005_gap.sql'))
    await write('0004_Name with spaces', 'select 1')
    await assert.rejects(readMigrations(dir), /NNNN_name/)
  })

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
  test('its dump is the same from every database that the migrations made, and names every table', async () => {
    const [one, two] = [await makeTestDatabase(), await makeTestDatabase()]
    const dumps = await Promise.all([one, two].map(dumpOf))
    assert.equal(dumps[0], dumps[1])
    const { rows } = await onServer(one.adminUrl, (admin) =>
      admin.query<{ name: string }>(`select tablename as name from pg_tables where schemaname = 'public'`),
    )
    for (const { name } of rows) assert.match(dumps[0] ?? '', new RegExp(`^CREATE TABLE ${name} \\(`, 'm'))
    await Promise.all([one.close(), two.close()])
  })

  test('every table with an organization has row-level security that binds its owner too', async () => {
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

  test('schema.sql says what the migrations make; "sandyard migrate --dump" writes it anew', async () => {
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
