import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import { addMember } from '../../../src/control/orgs/members.ts'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { OPERATIONS, type OperationId } from '../../../src/contract/operations.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../../../src/http/server/server.ts'
import { callWith } from '../../../src/http/requests/call-use-case.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addKey } from '../../support/orgs.ts'
import { makeSshKey } from '../../support/ssh-keys.ts'
import { makeTestClock } from '../../support/test-clock.ts'

// The routes of accounts over a real database.

const clock = makeTestClock()
let control: TestControl
let app: FastifyInstance
let admin: string
before(async () => {
  control = await makeTestControl()
  const deps = makeControlDeps({ ...control.deps, clock })
  app = makeServer({
    call: callWith(deps),
    log: deps.log,
    uuids: deps.uuids,
    metrics: new Registry(),
    unreadyReasons: () => Promise.resolve([]),
    settings: DEFAULT_SERVER_SETTINGS,
  })
  admin = await addKey(control.deps, control.caller.org_id)
})
after(async () => {
  await app.close()
  await control.close()
})

type Asking = { readonly key?: string; readonly id?: string; readonly query?: string; readonly body?: object }

/** Calls an operation, and asserts that our schemas and the published API document allow the reply. */
async function ask(operation: OperationId, { key = admin, id = '', query = '', body }: Asking = {}) {
  const { method, path } = OPERATIONS[operation]
  const reply = await app.inject({
    method,
    url: path.replace(/\{\w+\}/, id) + query,
    headers: { authorization: `Bearer ${key}` },
    ...(body === undefined ? {} : { payload: body }),
  })
  const json: unknown = JSON.parse(reply.body)
  assertReplyMatchesContract(operation, reply.statusCode, json)
  return { status: reply.statusCode, text: reply.body, json: Object(json), code: Object(json).error?.code }
}

test('a key is created, read, listed, used and revoked, and only the first reply shows its secret', async () => {
  const expires_at = '2027-01-31T12:00:00.000Z'
  const made = await ask('create_api_key', { body: { name: 'ci', scopes: ['write', 'read'], expires_at } })
  assert.equal(made.status, 200)
  const { key, id, ...rest } = made.json
  assert.deepEqual(rest, { name: 'ci', scopes: ['read', 'write'], created_at: clock.now().toISOString(), expires_at, last_used_at: null, revoked_at: null }) // prettier-ignore
  const shown = await ask('get_api_key', { id })
  assert.deepEqual(shown.json, { id, ...rest })
  const list = await ask('list_api_keys', { query: '?limit=100' })
  assert.ok(!list.text.includes(key) && list.text.includes(id))
  assert.equal((await ask('get_org', { key })).json.role, 'member')
  const revoked = await ask('revoke_api_key', { id })
  assert.deepEqual(revoked.json, { message: 'API key revoked' })
  assert.equal((await ask('get_org', { key })).status, 401)
  assert.equal((await ask('revoke_api_key', { id: String(id).toUpperCase() })).status, 200)
  assert.equal((await ask('get_api_key', { id })).json.revoked_at, clock.now().toISOString())
})

test('a key without scopes and expiry can do everything, never expires, and can revoke itself', async () => {
  const made = await ask('create_api_key', { body: { name: 'all' } })
  const { key, id } = made.json
  assert.deepEqual(made.json.scopes, ['read', 'write', 'admin'])
  assert.equal(made.json.expires_at, null)
  assert.equal((await ask('get_org', { key })).json.role, 'owner')
  assert.equal((await ask('revoke_api_key', { key, id })).status, 200)
  assert.equal((await ask('revoke_api_key', { key, id })).status, 401)
})

test('every operation answers a key with 401 from the moment when it expires, even if it was used just before', async () => {
  const expires_at = new Date(clock.now().getTime() + 100)
  const key = await addKey(control.deps, control.caller.org_id, { expires_at })
  assert.equal((await ask('list_sandboxes', { key })).status, 200)
  clock.advance(100)
  for (const operation of ['list_sandboxes', 'create_sandbox', 'list_api_keys', 'get_org'] as const)
    assert.deepEqual((await ask(operation, { key })).code, 'invalid_api_key')
})

test('a key with a bad name, scopes or expiry is refused by its field', async () => {
  const past = new Date(clock.now().getTime() - 1).toISOString()
  const cases: readonly (readonly [object, string])[] = [
    [{}, 'name'],
    [{ name: '' }, 'name'],
    [{ name: 'k', scopes: [] }, 'scopes'],
    [{ name: 'k', scopes: ['read', 'read'] }, 'scopes'],
    [{ name: 'k', scopes: ['root'] }, 'scopes[0]'],
    [{ name: 'k', expires_at: past }, 'expires_at'],
    [{ name: 'k', expires_at: 'tomorrow' }, 'expires_at'],
    [{ name: 'k', role: 'owner' }, 'role'],
  ]
  for (const [body, field] of cases) {
    const reply = await ask('create_api_key', { body })
    assert.deepEqual([reply.status, reply.code, reply.json.error.details.field], [400, 'invalid_request', field])
  }
  const strangers = await ask('get_api_key', { id: control.deps.uuids.next() })
  assert.deepEqual([strangers.status, strangers.code], [404, 'api_key_not_found'])
})

test('members are listed page by page, and a cursor of another list is refused', async () => {
  for (const n of [1, 2, 3])
    await addMember(control.deps, control.caller, { email: `m${String(n)}@example.org`, role: 'viewer', display_name: null }) // prettier-ignore
  const first = await ask('list_members', { query: '?limit=3' })
  assert.equal(first.json.has_more, true)
  const second = await ask('list_members', { query: `?limit=3&cursor=${String(first.json.next_cursor)}` })
  assert.equal(second.json.has_more, false)
  const emails = [...first.json.data, ...second.json.data].map((member: unknown) => Object(member).email)
  assert.deepEqual(emails, ['m3@example.org', 'm2@example.org', 'm1@example.org', 'owner@localhost'])
  const keys = await ask('list_api_keys', { query: '?limit=1' })
  const crossed = await ask('list_members', { query: `?cursor=${String(keys.json.next_cursor)}` })
  assert.equal(crossed.code, 'invalid_request')
  const reader = await addKey(control.deps, control.caller.org_id, { scopes: ['read'] })
  assert.equal((await ask('list_members', { key: reader })).status, 200)
})

test('a registry credential is saved, listed and deleted, and no reply or refusal shows its password', async () => {
  const body = { host: 'registry.example:5000', username: 'me', password: 'hunter2-of-a-test' }
  const saved = await ask('save_registry_credential', { body })
  const { id, created_at } = saved.json
  assert.deepEqual(saved.json, { id, host: body.host, username: 'me', created_at })
  const again = await ask('save_registry_credential', { body: { ...body, username: 'you' } })
  assert.equal(again.json.id, id)
  const list = await ask('list_registry_credentials')
  assert.deepEqual(list.json.data, [{ id, host: body.host, username: 'you', created_at }])
  const refusals = [
    await ask('save_registry_credential', { body: { ...body, host: 'https://registry.example' } }),
    await ask('save_registry_credential', { body: { ...body, password: [body.password] } }),
    await ask('save_registry_credential', { body: { ...body, password: `${body.password}\n` } }),
    await ask('save_registry_credential', { body: { ...body, extra: body.password } }),
  ]
  for (const { code } of refusals) assert.equal(code, 'invalid_request')
  const events = await ask('list_events')
  for (const { text } of [saved, again, list, events, ...refusals]) assert.ok(!text.includes(body.password), text)
  assert.equal((await ask('delete_registry_credential', { id })).status, 200)
  assert.equal((await ask('delete_registry_credential', { id })).code, 'registry_credential_not_found')
})

test('an SSH key is added once, read by keys that may read, and removed by keys that may administer', async () => {
  const body = { name: 'laptop', public_key: makeSshKey() }
  const added = await ask('add_ssh_key', { body })
  const { id, fingerprint, created_at } = added.json
  const public_key = body.public_key.split(' ').slice(0, 2).join(' ')
  assert.deepEqual(added.json, { id, name: 'laptop', fingerprint, public_key, created_at })
  assert.match(fingerprint, /^SHA256:[A-Za-z0-9+/]{43}$/)
  assert.equal((await ask('add_ssh_key', { body })).code, 'ssh_key_already_exists')
  for (const [bad, field] of [
    [{ public_key: 'ssh-ed25519 AAAA' }, 'public_key'],
    [{ name: '' }, 'name'],
  ] as const) {
    const refused = await ask('add_ssh_key', { body: { ...body, ...bad } })
    assert.deepEqual([refused.code, refused.json.error.details.field], ['invalid_request', field])
  }
  const reader = await addKey(control.deps, control.caller.org_id, { scopes: ['read'] })
  assert.deepEqual((await ask('list_ssh_keys', { key: reader })).json.data, [added.json])
  assert.deepEqual((await ask('get_ssh_key', { key: reader, id })).json, added.json)
  assert.equal((await ask('remove_ssh_key', { key: reader, id })).status, 403)
  assert.equal((await ask('remove_ssh_key', { id })).status, 200)
  assert.equal((await ask('remove_ssh_key', { id })).code, 'ssh_key_not_found')
})
