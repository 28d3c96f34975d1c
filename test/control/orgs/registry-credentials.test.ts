import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { credentialSealContext, findRegistryAuth } from '../../../src/control/orgs/registry-auth.ts'
import { deleteCredential, listCredentials, saveCredential } from '../../../src/control/orgs/registry-credentials.ts'
import { openDatabase, type Database } from '../../../src/store/postgres/database.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { isRegistryHost } from '../../../src/domain/orgs/registry-host.ts'
import * as credentials from '../../../src/store/orgs/credentials.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

const PASSWORD = 'hunter2-and-nobody-else-knows'
const SPELLINGS = ['utf8', 'hex', 'base64'] as const

let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl()
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

function save(host: string, password = PASSWORD, username = 'me') {
  return saveCredential(control.deps, control.caller, { host, username, password })
}

/** The text of every row of every table. */
async function wholeDatabase(): Promise<string> {
  return control.deps.db.asSystem(async (q) => {
    const tables = await q.query<{ readonly name: string }>({
      text: `SELECT quote_ident(tablename) AS name FROM pg_tables WHERE schemaname = 'public'`,
    })
    const texts: string[] = []
    for (const { name } of tables.rows) {
      const { rows } = await q.query<{ readonly row: string }>({ text: `SELECT t::text AS row FROM ${name} t` })
      texts.push(...rows.map(({ row }) => `${name} ${row}`))
    }
    return texts.join('\n')
  })
}

async function eventsOf(who: Caller): Promise<string> {
  const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
  return JSON.stringify((await listEvents(control.deps, who, input)).items)
}

test('a password is in no reply, event or row, in any encoding, and unseals only for its own organization and host', async () => {
  const { deps, caller } = control
  const saved = await save('registry.example')
  const shown = await listCredentials(deps, caller, { cursor: null, limit: 100 })
  const all = [JSON.stringify([saved, shown]), await eventsOf(caller), await wholeDatabase()].join('\n')
  assert.match(all, /registry_credentials .*registry\.example/)
  for (const spelling of SPELLINGS)
    assert.ok(!all.includes(Buffer.from(PASSWORD).toString(spelling).replace(/=+$/, '')), spelling)
  const sealed = await deps.db.asOrg(caller.org_id, (q) => credentials.findSealed(q, caller.org_id, saved.id))
  assert.ok(sealed)
  assert.equal(deps.seal.open(sealed.password_sealed, credentialSealContext(caller.org_id, saved.host)), PASSWORD)
  assert.throws(() => deps.seal.open(sealed.password_sealed, credentialSealContext(stranger.org_id, saved.host)))
  assert.throws(() => deps.seal.open(sealed.password_sealed, credentialSealContext(caller.org_id, 'other.example')))
})

test('a second save for a host replaces the first and keeps its id, and each organization has its own credential', async () => {
  const first = await save('replaced.example:5000', 'before')
  const second = await save('replaced.example:5000', 'after', 'you')
  assert.deepEqual(second, { ...first, username: 'you' })
  const theirs = await saveCredential(control.deps, stranger, { host: 'replaced.example:5000', username: 'x', password: 'y' }) // prettier-ignore
  assert.notEqual(theirs.id, first.id)
  const { items } = await listCredentials(control.deps, stranger, { cursor: null, limit: 100 })
  assert.deepEqual(items, [theirs])
})

test("a worker gets its organization's credential and no other, even while the organization keeps its connections busy", async () => {
  const { deps, caller } = control
  await using db = await openLimitedDatabase()
  const busy = Promise.withResolvers<void>()
  const question = db.asOrg(caller.org_id, () => busy.promise)
  const order = {
    sandbox_id: asId<SandboxId>(deps.uuids.next()),
    spec: { ...PLAIN_SPEC, image: 'busy.example/box:1' },
    registry: { mode: 'auto' },
    registry_sealed: null,
    has_credentials: true,
  } as const
  await save('busy.example', PASSWORD)
  const told = [caller, stranger].map(({ org_id }) => findRegistryAuth({ ...deps, db }, { ...order, org_id }))
  assert.deepEqual(await Promise.all(told), [{ username: 'me', password: PASSWORD }, null])
  busy.resolve()
  await question
})

/** Opens the test's database with a single connection for queries of organizations. */
async function openLimitedDatabase(): Promise<Database & AsyncDisposable> {
  const db = await openDatabase({
    connectionString: control.databaseUrl,
    tenantPoolSize: 1,
    connectionsPerOrg: 1,
    systemPoolSize: 2,
    statementTimeoutMs: 20_000,
    log: control.deps.log,
  })
  return { ...db, [Symbol.asyncDispose]: () => db.close() }
}

test('a credential is deleted once, by its id or its host, and never by another organization', async () => {
  const { deps, caller } = control
  const missing = { code: 'registry_credential_not_found' }
  const [byId, byHost] = [await save('by-id.example'), await save('by-host.example')]
  await assert.rejects(deleteCredential(deps, stranger, { id: byId.id }), missing)
  await assert.rejects(deleteCredential(deps, stranger, { host: byHost.host }), missing)
  await deleteCredential(deps, caller, { id: byId.id })
  await deleteCredential(deps, caller, { host: byHost.host })
  await assert.rejects(deleteCredential(deps, caller, { id: byId.id }), missing)
  await assert.rejects(deleteCredential(deps, caller, { host: byHost.host }), missing)
  const told = await eventsOf(caller)
  assert.equal(told.split('registry_credential_deleted').length, 3)
})

test('credentials are listed in pages, newest first', async () => {
  const org = await addOrg(control.deps, 'paged')
  const made: string[] = []
  for (const host of ['a.example', 'b.example', 'c.example'])
    made.unshift((await saveCredential(control.deps, org, { host, username: 'u', password: 'p' })).id)
  const one = await listCredentials(control.deps, org, { cursor: null, limit: 2 })
  const two = await listCredentials(control.deps, org, { cursor: one.nextCursor, limit: 2 })
  assert.deepEqual(
    [...one.items, ...two.items].map(({ id }) => id),
    made,
  )
  assert.equal(two.nextCursor, null)
})

test('a refusal names the field and never repeats the password', async () => {
  const bad: readonly (readonly [Parameters<typeof save>, string])[] = [
    [['https://registry.example', PASSWORD], 'host'],
    [['registry.example', PASSWORD, ''], 'username'],
    [['registry.example', PASSWORD, 'a:b'], 'username'],
    [['registry.example', ''], 'password'],
    [['registry.example', `${PASSWORD}\n`], 'password'],
    [['registry.example', PASSWORD.repeat(1_000)], 'password'],
  ]
  for (const [args, field] of bad)
    await assert.rejects(save(...args), (error) => {
      assert.ok(error instanceof Error && 'details' in error)
      assert.equal(Object(error.details).field, field)
      assert.ok(!JSON.stringify([error.message, error.details]).includes(PASSWORD))
      return true
    })
})

test('a registry host is a lower-case host name with an optional port', () => {
  for (const good of ['registry.example', 'localhost:5000', '127.0.0.1:5000', '[::1]:5000', 'a-b.c:1', 'x'])
    assert.ok(isRegistryHost(good), good)
  for (const bad of [
    '',
    'https://a.example',
    'a.example/',
    'a.example/b',
    'A.example',
    'a..b',
    '-a',
    'a:',
    'a:0',
    'a:65536',
    'a b',
    'a\n',
    `${'a'.repeat(256)}`,
  ])
    // prettier-ignore
    assert.ok(!isRegistryHost(bad), bad)
})
