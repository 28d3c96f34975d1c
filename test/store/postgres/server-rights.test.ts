import assert from 'node:assert/strict'
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { UnsuitableDatabase } from '../../../src/store/postgres/database.ts'
import { prepareSchema } from '../../../src/store/postgres/prepare-schema.ts'
import { makeEmptyDatabase, makeTestDatabase, onServer, type TestDatabase } from '../../support/postgres.ts'

const log = makeLog('silent')
const MIGRATIONS = join(import.meta.dirname, '..', '..', '..', 'migrations')

describe('the role that serves requests', () => {
  let home: TestDatabase
  let role: string
  let owner: string

  beforeEach(async () => {
    home = await makeTestDatabase()
    role = new URL(home.url).username
    owner = new URL(home.ownerUrl).username
  })
  afterEach(() => home.close())

  test('has exactly the listed rights on every table and view, and none of them is missing in the list', async () => {
    const { rows } = await asAdmin(
      `SELECT c.relname, w.relation IS NOT NULL AS is_listed, ARRAY(SELECT unnest(w.rights) ORDER BY 1) AS listed,
              ARRAY(SELECT a.privilege_type FROM aclexplode(c.relacl) a WHERE a.grantee = '${role}'::regrole ORDER BY 1) AS held
         FROM pg_class c FULL JOIN sandyard_server_rights() w ON w.relation = c.relname
        WHERE w.relation IS NOT NULL OR (c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f'))`,
    )
    assert.ok(rows.length > 20)
    for (const { relname, is_listed, listed, held } of rows) {
      assert.ok(
        is_listed,
        `${String(relname)} has no row in sandyard_server_rights(): see "A table" in CONTRIBUTING.md`,
      )
      assert.deepEqual(held, listed, String(relname))
    }
  })

  test('owns nothing, can become nobody else, and can create nothing', async () => {
    const { rows } = await asAdmin(
      `SELECT (SELECT count(*) FROM pg_shdepend WHERE refobjid = r.oid AND deptype = 'o')::int AS owned,
              (SELECT count(*) FROM pg_auth_members WHERE member = r.oid)::int AS roles,
              rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication AS strong,
              has_schema_privilege(r.oid, 'public', 'CREATE') AS creates_objects,
              has_database_privilege(r.oid, current_database(), 'CREATE') AS creates_schemas,
              has_database_privilege(r.oid, current_database(), 'TEMPORARY') AS creates_temporary_tables
         FROM pg_roles r WHERE rolname = '${role}'`,
    )
    const none = { owned: 0, roles: 0, strong: false, creates_objects: false, creates_schemas: false }
    assert.deepEqual(rows, [{ ...none, creates_temporary_tables: false }])
  })

  test('functions that run as their owner or change a setting have a fixed search path, and only the server may call the former', async () => {
    const { rows } = await asAdmin(
      `SELECT proname, prosecdef, proconfig, has_function_privilege('pg_monitor', oid, 'EXECUTE') AS is_public,
              has_function_privilege('${role}', oid, 'EXECUTE') AS serves
         FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND (prosecdef OR prosrc ~ 'set_config') ORDER BY 1`,
    )
    const common = { proconfig: ['search_path=public, pg_temp'], serves: true }
    assert.deepEqual(rows, [
      { proname: 'sandyard_prune_events', prosecdef: true, is_public: false, ...common },
      { proname: 'sandyard_raise_generations', prosecdef: false, is_public: true, ...common },
    ])
  })

  test('gets its rights from the owner at each start: excess ones are revoked, missing ones are granted', async () => {
    await asAdmin(
      `GRANT ALL ON events TO ${role}; REVOKE ALL ON workers FROM ${role};
       REVOKE EXECUTE ON FUNCTION sandyard_prune_events FROM ${role}; GRANT EXECUTE ON FUNCTION sandyard_prune_events TO PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC`,
    )
    assert.deepEqual(await prepareSchema({ server: home.url, owner: home.ownerUrl }, MIGRATIONS, log), {
      name: role,
      isOwner: false,
    })
    const { rows } = await asAdmin(
      `SELECT has_table_privilege('${role}', 'events', 'TRUNCATE') AS excess,
              has_table_privilege('${role}', 'workers', 'SELECT') AS missing,
              has_schema_privilege('${role}', 'public', 'CREATE') AS creates,
              has_function_privilege('pg_monitor', 'sandyard_prune_events(timestamptz,uuid,integer)', 'EXECUTE') AS public_prunes`,
    )
    assert.deepEqual(rows, [{ excess: false, missing: true, creates: false, public_prunes: false }])
  })

  test('keeps the rights of the newest schema when a process of an older release starts', async () => {
    const older = await mkdtemp(join(tmpdir(), 'sandyard-older-'))
    const files = (await readdir(MIGRATIONS)).sort().slice(0, -1)
    for (const file of files) await cp(join(MIGRATIONS, file), join(older, file))
    const before = await asAdmin('SELECT relname, relacl::text FROM pg_class ORDER BY oid')
    await prepareSchema({ server: home.url, owner: home.ownerUrl }, older, log)
    assert.deepEqual((await asAdmin('SELECT relname, relacl::text FROM pg_class ORDER BY oid')).rows, before.rows)
    await rm(older, { recursive: true })
  })

  test('starts without the owner’s URL if nothing is to be migrated or granted', async () => {
    const alone = { server: home.url, owner: null }
    assert.deepEqual(await prepareSchema(alone, MIGRATIONS, log), { name: role, isOwner: false })
    await asAdmin(`REVOKE UPDATE ON sandboxes FROM ${role}`)
    await assertRefused(prepareSchema(alone, MIGRATIONS, log), /lacks rights on sandboxes\. Set DATABASE_OWNER_URL/)
    await asAdmin('DELETE FROM sandyard_migrations WHERE id = (SELECT max(id) FROM sandyard_migrations)')
    await assertRefused(prepareSchema(alone, MIGRATIONS, log), /lacks the migration \d{4}_.* run `sandyard migrate`/)
  })

  test('is refused if it could switch row-level security off', async () => {
    const both = { server: home.url, owner: home.ownerUrl }
    await assertRefused(prepareSchema({ ...both, server: home.ownerUrl }, MIGRATIONS, log), /owns the tables/)
    const mighty = `sandyard_test_mighty_${String(process.pid)}`
    for (const [power, told] of [
      [`GRANT ${owner} TO ${mighty}`, new RegExp(`is a member of the role ${owner}`)],
      [`ALTER ROLE ${mighty} CREATEROLE`, /CREATEROLE/],
      [`GRANT pg_execute_server_program TO ${mighty}`, /programs of the database server/],
      [`GRANT CREATE ON SCHEMA public TO ${mighty}`, /can create objects in the schema public/],
    ] as const) {
      await asAdmin(`CREATE ROLE ${mighty} LOGIN PASSWORD 'x'; ${power}`)
      const url = Object.assign(new URL(home.url), { username: mighty, password: 'x' }).href
      await assertRefused(prepareSchema({ ...both, server: url }, MIGRATIONS, log), told)
      await asAdmin(`DROP OWNED BY ${mighty}; DROP ROLE ${mighty}`)
    }
  })

  test('is separated later: a single role migrates and serves, until it has two URLs', async () => {
    const empty = await makeEmptyDatabase()
    const alone = { server: empty.ownerUrl, owner: null }
    const server = Object.assign(new URL(empty.ownerUrl), { username: role, password: role }).href
    await assertRefused(prepareSchema({ server, owner: null }, MIGRATIONS, log), /Set DATABASE_OWNER_URL/)
    assert.deepEqual(await prepareSchema(alone, MIGRATIONS, log), { name: owner, isOwner: true })
    await assertRefused(prepareSchema({ server, owner: null }, MIGRATIONS, log), /DATABASE_OWNER_URL/)
    assert.deepEqual(await prepareSchema({ server, owner: empty.ownerUrl }, MIGRATIONS, log), {
      name: role,
      isOwner: false,
    })
    assert.deepEqual(await prepareSchema(alone, MIGRATIONS, log), { name: owner, isOwner: true })
    await empty.close()
  })

  test('20 processes at the same time migrate an empty database and grant the rights', async () => {
    const empty = await makeEmptyDatabase()
    const server = Object.assign(new URL(empty.ownerUrl), { username: role, password: role }).href
    const urls = { server, owner: empty.ownerUrl }
    const roles = await Promise.all(Array.from({ length: 20 }, () => prepareSchema(urls, MIGRATIONS, log)))
    assert.ok(roles.every(({ name }) => name === role))
    await empty.close()
  })

  function asAdmin(text: string) {
    return onServer(home.adminUrl, (admin) => admin.query<Record<string, unknown>>(text))
  }
})

async function assertRefused(starting: Promise<unknown>, told: RegExp): Promise<void> {
  await assert.rejects(starting, (error) => {
    assert.ok(error instanceof UnsuitableDatabase, String(error))
    assert.match(error.message, told)
    return true
  })
}
