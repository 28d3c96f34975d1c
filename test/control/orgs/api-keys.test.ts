import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import {
  createApiKey,
  getApiKey,
  listApiKeys,
  revokeApiKey,
  type NewApiKey,
} from '../../../src/control/orgs/api-keys.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import type { ControlDeps } from '../../../src/control/make-deps.ts'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { listEvents } from '../../../src/control/events/read-events.ts'
import { SCOPES, type Caller } from '../../../src/domain/orgs/caller.ts'
import { asId, type ApiKeyId } from '../../../src/domain/ids.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl()
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

function create(input: Partial<NewApiKey> = {}, deps: ControlDeps = control.deps) {
  return createApiKey(deps, control.caller, { name: 'made', scopes: SCOPES, expires_at: null, ...input })
}

test('a key has the widest of its scopes, and the role of that scope', async () => {
  const cases = [
    [['read'], 'read', 'viewer'],
    [['write'], 'write', 'member'],
    [['read', 'write'], 'write', 'member'],
    [['admin'], 'admin', 'owner'],
    [SCOPES, 'admin', 'owner'],
  ] as const
  for (const [scopes, scope, role] of cases) {
    const { id, key } = await create({ scopes, name: 'for all to see' })
    const actor = { kind: 'api_key', api_key_id: id, name: 'for all to see' }
    assert.deepEqual(await authenticate(control.deps, key), { org_id: control.caller.org_id, api_key_id: id, role, scope, actor, isOperator: false }) // prettier-ignore
  }
})

test("a key's secret appears only in the answer that creates it, in no table, list or event", async () => {
  const { key, ...rest } = await create({ name: 'secretive' })
  assert.match(key, /^msb_live_[0-9A-Za-z]{49}$/)
  assert.deepEqual(await getApiKey(control.deps, control.caller, rest.id), rest)
  const shown = await listApiKeys(control.deps, control.caller, { cursor: null, limit: 100 })
  const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
  const events = await listEvents(control.deps, control.caller, input)
  const { rows } = await control.deps.db.asSystem((q) => q.query({ text: 'SELECT k::text AS row FROM api_keys k' }))
  const all = JSON.stringify([shown, events, rows])
  assert.ok(!all.includes(key) && !all.includes(Buffer.from(key).toString('hex')))
  assert.ok(!/sha256/.test(JSON.stringify(shown)))
})

test('a revoked key is refused at once by the process that revoked it and within a second by others, and stays in the list', async () => {
  const clock = makeTestClock()
  const here = makeControlDeps({ ...control.deps, clock })
  const elsewhere = makeControlDeps({ ...control.deps, clock })
  const { id, key } = await create()
  assert.notEqual(await authenticate(here, key), null)
  assert.notEqual(await authenticate(elsewhere, key), null)
  await revokeApiKey(here, control.caller, id)
  assert.equal(await authenticate(here, key), null)
  clock.advance(1_000)
  assert.equal(await authenticate(elsewhere, key), null)
  const { revoked_at } = await getApiKey(control.deps, control.caller, id)
  assert.ok(revoked_at !== null)
  await revokeApiKey(here, control.caller, id)
  assert.deepEqual((await getApiKey(control.deps, control.caller, id)).revoked_at, revoked_at)
  const input = { event_type: 'api_key_revoked', since: null, until: null, cursor: null, limit: 100 }
  const { items } = await listEvents(control.deps, control.caller, input)
  assert.deepEqual(
    items.map(({ payload }) => payload).filter((payload) => Object(payload).api_key_id === id),
    [{ api_key_id: id, name: 'made' }],
  )
})

test('an expired key is refused at its expiry by the wall clock, cached or not', async () => {
  const clock = makeTestClock()
  let aheadMs = 0
  const stepping = { ...clock, now: () => new Date(clock.now().getTime() + aheadMs) }
  const deps = makeControlDeps({ ...control.deps, clock: stepping })
  const { key } = await create({ expires_at: new Date(clock.now().getTime() + 500) }, deps)
  assert.notEqual(await authenticate(deps, key), null)
  clock.advance(499)
  assert.notEqual(await authenticate(deps, key), null)
  clock.advance(1)
  assert.equal(await authenticate(deps, key), null)
  const far = await create({ expires_at: new Date(stepping.now().getTime() + 3_600_000) }, deps)
  assert.notEqual(await authenticate(deps, far.key), null)
  aheadMs = 3_600_000 // sets the wall clock forward; by the monotonic clock, the cache entry is still valid
  assert.equal(await authenticate(deps, far.key), null)
})

test("a key's last use is recorded once a minute, and no request waits for it", async () => {
  const clock = makeTestClock()
  const { db } = control.deps
  const gate = Promise.withResolvers<void>()
  let writes = 0
  const commitStatement: typeof db.commitStatement = async (scope, statement) => {
    if (statement.name === 'api_keys.recordUses') {
      writes += 1
      await gate.promise
    }
    return db.commitStatement(scope, statement)
  }
  const deps = makeControlDeps({ ...control.deps, clock, db: { ...db, commitStatement } })
  const { id, key } = await create()
  const lastUse = async () => (await getApiKey(control.deps, control.caller, id)).last_used_at?.getTime()
  assert.notEqual(await authenticate(deps, key), null) // succeeds although the last use can't be written
  assert.equal(await lastUse(), undefined)
  gate.resolve()
  const firstMs = clock.now().getTime()
  await waitFor(lastUse, firstMs)
  for (let second = 0; second < 59; second++) {
    clock.advance(1_000)
    assert.notEqual(await authenticate(deps, key), null)
  }
  await waitUntil(() => writes === 1)
  assert.equal(await lastUse(), firstMs)
  clock.advance(1_000)
  assert.notEqual(await authenticate(deps, key), null)
  await waitFor(lastUse, firstMs + 60_000)
  assert.equal(writes, 2)
})

async function waitFor(read: () => Promise<number | undefined>, wanted: number): Promise<void> {
  await waitUntil(async () => (await read()) === wanted, 60_000)
}

test('keys are listed in pages, newest first, including revoked and expired ones', async () => {
  const org = await addOrg(control.deps, 'paged')
  const made: string[] = []
  for (let index = 0; index < 5; index++) {
    const { id } = await createApiKey(control.deps, org, { name: `k${String(index)}`, scopes: ['read'], expires_at: null }) // prettier-ignore
    made.unshift(id)
    if (index % 2 === 0) await revokeApiKey(control.deps, org, id)
  }
  const seen: string[] = []
  for (let cursor: string | null = null; ;) {
    const page = await listApiKeys(control.deps, org, { cursor, limit: 2 })
    seen.push(...page.items.map(({ id }) => id))
    cursor = page.nextCursor
    if (cursor === null) break
  }
  assert.deepEqual(seen, [...made, org.api_key_id])
  await assert.rejects(listApiKeys(control.deps, org, { cursor: 'x', limit: 2 }), { code: 'invalid_request' })
})

test("another organization can't see or revoke a key", async () => {
  const { id, key } = await create()
  await assert.rejects(getApiKey(control.deps, stranger, id), { code: 'api_key_not_found' })
  await assert.rejects(revokeApiKey(control.deps, stranger, id), { code: 'api_key_not_found' })
  await assert.rejects(getApiKey(control.deps, control.caller, asId<ApiKeyId>(control.deps.uuids.next())), { code: 'api_key_not_found' }) // prettier-ignore
  const { items } = await listApiKeys(control.deps, stranger, { cursor: null, limit: 100 })
  assert.deepEqual(
    items.map((item) => item.id),
    [stranger.api_key_id],
  )
  assert.notEqual(await authenticate(control.deps, key), null)
})

test('an invalid name, no scopes, and an expiry in the past are refused by field, and no key is created', async () => {
  const countAll = async () => (await listApiKeys(control.deps, control.caller, { cursor: null, limit: 100 })).items.length // prettier-ignore
  const count = await countAll()
  const now = control.deps.clock.now()
  const bad: readonly (readonly [Partial<NewApiKey>, string])[] = [
    [{ name: '' }, 'name'],
    [{ name: 'a\nb' }, 'name'],
    [{ name: 'é'.repeat(65) }, 'name'],
    [{ scopes: [] }, 'scopes'],
    [{ expires_at: now }, 'expires_at'],
  ]
  for (const [input, field] of bad)
    await assert.rejects(create(input), (error) => {
      assert.ok(error instanceof Error && 'details' in error)
      assert.equal(Object(error.details).field, field)
      return true
    })
  assert.equal(await countAll(), count)
})
