import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Client, DatabaseError } from 'pg'
import { addOrg } from '../support/orgs.ts'
import { makeTestControl } from '../support/control.ts'
import { onServer } from '../support/postgres.ts'
import { attack } from '../support/security-attack.ts'
import { readRows } from '../support/server-database.ts'
import { startServer } from '../support/server.ts'

const INSUFFICIENT_PRIVILEGE = '42501'

/** What an attacker tries who can send any SQL as the role that serves requests. `$owner` is the owner's role. */
const STATEMENTS: readonly string[] = [
  'ALTER TABLE sandboxes DISABLE ROW LEVEL SECURITY',
  'ALTER TABLE sandboxes NO FORCE ROW LEVEL SECURITY',
  'ALTER TABLE sandboxes OWNER TO CURRENT_USER',
  'DROP POLICY tenant ON sandboxes',
  'CREATE POLICY mine ON sandboxes USING (true)',
  'CREATE OR REPLACE FUNCTION sandyard_is_system() RETURNS boolean LANGUAGE sql STABLE AS $$ SELECT true $$',
  'ALTER FUNCTION sandyard_is_system() SET search_path = public',
  `CREATE OR REPLACE FUNCTION sandyard_org() RETURNS uuid LANGUAGE sql STABLE AS $$ SELECT '01890a5d-ac96-774b-bcce-b302099a8000'::uuid $$`,
  'CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$',
  'CREATE TABLE mine (id int)',
  'CREATE TEMPORARY TABLE worker_generations (worker_id uuid PRIMARY KEY, generation bigint)',
  'CREATE VIEW mine AS SELECT * FROM sandboxes',
  'CREATE SCHEMA mine',
  'ALTER TABLE events DISABLE TRIGGER events_append_only',
  'UPDATE events SET payload = payload',
  'DELETE FROM events',
  'TRUNCATE events',
  'TRUNCATE sandboxes CASCADE',
  'DROP TABLE api_keys CASCADE',
  'DELETE FROM orgs',
  `INSERT INTO sandyard_migrations (id, name, sha256) VALUES (9999, 'mine', '')`,
  'SET ROLE $owner',
  'SET SESSION AUTHORIZATION $owner',
  'GRANT $owner TO CURRENT_USER',
  'GRANT ALL ON ALL TABLES IN SCHEMA public TO CURRENT_USER',
  'ALTER ROLE CURRENT_USER BYPASSRLS',
  'ALTER ROLE $owner SUPERUSER',
  'CREATE ROLE mine SUPERUSER',
  'SET session_replication_role = replica',
  'ALTER DATABASE sandyard SET session_replication_role = replica',
  'ALTER DATABASE sandyard OWNER TO CURRENT_USER',
  'SELECT * FROM pg_authid',
  'SELECT * FROM pg_shadow',
  `SELECT pg_read_file('/etc/passwd')`,
  `COPY (SELECT 1) TO PROGRAM 'id'`,
  `COPY orgs TO '/tmp/mine'`,
  `SELECT lo_import('/etc/passwd')`,
]

/** Statements that PostgreSQL answers without an error, although it grants nothing. They must change nothing. */
const WARNED = /^GRANT ALL ON ALL TABLES/

attack(
  'switches row-level security off',
  { target: 'control-plane', attacker: 'any SQL as the role that serves requests', finding: 14 },
  async (t) => {
    const server = await startServer({ SANDYARD_DRIVER: 'simulated' })
    t.after(() => server.close())
    const urls = ['database.url', 'database-owner.url'].map((name) => readFileSync(join(server.dataDir, name), 'utf8'))
    const [url = '', ownerUrl = ''] = urls
    const owner = new URL(ownerUrl).username
    const serving = await readRows<{ role: string }>(
      server,
      `SELECT DISTINCT usename AS role FROM pg_stat_activity WHERE application_name LIKE 'sandyard%'`,
    )
    assert.deepEqual(serving, [{ role: new URL(url).username }])
    assert.notEqual(new URL(url).username, owner)
    const rightsBefore = await rightsOf(server)
    const answers = await tryAll(url, owner)
    assert.deepEqual(answers.filter(({ sql, code }) => code !== INSUFFICIENT_PRIVILEGE && !WARNED.test(sql)), []) // prettier-ignore
    assert.deepEqual(await rightsOf(server), rightsBefore)
    // The owner, who served until now, can do most of it; so the attempts are real.
    const allowed = (await tryAll(ownerUrl, owner)).filter(({ code }) => code === null)
    assert.ok(allowed.length >= 15, `the owner can do ${String(allowed.length)}`)
    return {
      tries: answers.length,
      outcome: `PostgreSQL refused each; the owner of the tables, who no longer serves, can do ${String(allowed.length)} of them`,
    }
  },
)

attack(
  'reads another organization’s rows past its scope',
  { target: 'control-plane', attacker: 'any function as the role that serves requests', finding: 14 },
  async () => {
    const control = await makeTestControl()
    const client = new Client({ connectionString: control.databaseUrl })
    try {
      const other = await addOrg(control.deps, 'other')
      await client.connect()
      await client.query(`SELECT set_config('sandyard.org', $1, false)`, [control.caller.org_id])
      const reads = ['orgs', 'api_keys', 'org_limits', 'events', 'members'].map((table) =>
        table === 'orgs' ? 'SELECT id FROM orgs' : `SELECT org_id AS id FROM ${table}`,
      )
      for (const sql of reads) await assertScoped(client, sql, other.org_id)
      // The function raises its scope while it runs. Neither its success nor its failure may leave it raised.
      await assertScoped(client, `SELECT o.id, sandyard_raise_generations('{}') FROM orgs o`, other.org_id)
      await client.query('BEGIN; SAVEPOINT before')
      await assert.rejects(client.query(`SELECT sandyard_raise_generations('{00000000-0000-7000-8000-000000000001}')`))
      await client.query('ROLLBACK TO before')
      await assertScoped(client, 'SELECT id FROM orgs', other.org_id)
      await client.query('ROLLBACK')
      await client.query('SET row_security = off')
      await assert.rejects(client.query('SELECT * FROM sandboxes'), { code: INSUFFICIENT_PRIVILEGE })
      return { tries: reads.length + 3, outcome: 'each showed rows of its own organization alone, or was refused' }
    } finally {
      await client.end()
      await control.close()
    }
  },
)

type Answer = { readonly sql: string; readonly code: string | null }

/** Tries each statement in a transaction of its own, which is rolled back. The code of an allowed one is null. */
async function tryAll(url: string, owner: string): Promise<readonly Answer[]> {
  return onServer(url, async (client) => {
    const answers: Answer[] = []
    for (const sql of STATEMENTS.map((text) => text.replaceAll('$owner', owner))) {
      await client.query(`BEGIN; SELECT set_config('sandyard.org', '*', true)`)
      answers.push({ sql, code: await codeOf(client.query(sql)) })
      await client.query('ROLLBACK')
    }
    return answers
  })
}

async function codeOf(query: Promise<unknown>): Promise<string | null> {
  try {
    await query
    return null
  } catch (error) {
    if (error instanceof DatabaseError) return error.code ?? ''
    throw error
  }
}

async function rightsOf(server: Parameters<typeof readRows>[0]): Promise<readonly unknown[]> {
  return readRows(server, 'SELECT relname, relacl::text FROM pg_class ORDER BY oid')
}

/** Asserts that a query shows rows, and none of another organization. */
async function assertScoped(client: Client, sql: string, other: string): Promise<void> {
  const { rows } = await client.query<{ id: string }>(sql)
  assert.ok(rows.length > 0, sql)
  assert.ok(!rows.some(({ id }) => id === other), sql)
}
