import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createApiKey } from '../../../src/control/orgs/api-keys.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import { createFirstOrg } from '../../../src/control/orgs/create-first-org.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { openChannel } from '../../../src/control/streams/open-channel.ts'
import { getEvent, listEvents } from '../../../src/control/events/read-events.ts'
import { getOrg } from '../../../src/control/orgs/orgs.ts'
import { getSandbox, listSandboxes } from '../../../src/control/sandboxes/read-sandboxes.ts'
import { renameSandbox } from '../../../src/control/sandboxes/rename-sandbox.ts'
import { addSshKey } from '../../../src/control/orgs/ssh-keys.ts'
import { saveCredential } from '../../../src/control/orgs/registry-credentials.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { SCOPES, type Caller } from '../../../src/domain/orgs/caller.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { openDatabase, type Queryable } from '../../../src/store/postgres/database.ts'
import { makeSshKey } from '../../support/ssh-keys.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { makeTestDatabase } from '../../support/postgres.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const never = new AbortController().signal
let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl()
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

function create(start: boolean): Promise<Sandbox> {
  const registry = { mode: 'auto' } as const
  const input = { spec: PLAIN_SPEC, name: null, slug: null, registry, start, waitMs: null, signal: never }
  return createSandbox(control.deps, control.caller, input)
}

async function typesOf(): Promise<readonly string[]> {
  const input = { event_type: null, since: null, until: null, cursor: null, limit: 1_000 }
  return (await listEvents(control.deps, control.caller, input)).items.map((event) => event.event_type).reverse()
}

test('no use case shows or changes a sandbox or event of another organization', async () => {
  const { deps, caller } = control
  const { id, name } = await create(true)
  const [event] = (
    await listEvents(deps, caller, { event_type: null, since: null, until: null, cursor: null, limit: 1 })
  ).items
  assert.ok(event)
  const options = { waitMs: null, signal: never }
  for (const ref of [{ id }, { name }]) {
    const missing = { code: 'sandbox_not_found' }
    await assert.rejects(getSandbox(deps, stranger, ref), missing)
    await assert.rejects(startSandbox(deps, stranger, ref, options), missing)
    await assert.rejects(stopSandbox(deps, stranger, ref), missing)
    await assert.rejects(renameSandbox(deps, stranger, ref, { name: 'mine' }), missing)
    await assert.rejects(deleteSandbox(deps, stranger, ref), missing)
  }
  await assert.rejects(openChannel(deps, stranger, id, never), { code: 'sandbox_not_found' })
  await assert.rejects(getEvent(deps, stranger, event.id), { code: 'event_not_found' })
  assert.deepEqual((await listSandboxes(deps, stranger, { cursor: null, limit: 100, labels: {} })).items, [])
  assert.deepEqual(
    (await listEvents(deps, stranger, { event_type: null, since: null, until: null, cursor: null, limit: 100 })).items,
    [],
  )
  assert.equal((await getOrg(deps, stranger)).name, 'stranger')
  assert.equal((await getSandbox(deps, caller, { id })).status, 'starting')
})

test('in every table, a query without a filter sees and changes only rows of its own organization', async () => {
  const { deps, caller } = control
  await create(true)
  await saveCredential(deps, caller, { host: 'registry.example', username: 'me', password: 'secret' })
  await addSshKey(deps, caller, { name: 'laptop', public_key: makeSshKey() })
  for (const table of [
    'sandboxes',
    'runs',
    'events',
    'api_keys',
    'members',
    'volumes',
    'registry_credentials',
    'ssh_keys',
  ]) {
    const ownersSeenBy = async (who: Caller): Promise<readonly string[]> => {
      const { rows } = await deps.db.asOrg(who.org_id, (q) =>
        q.query<{ readonly org_id: string }>({ text: `SELECT DISTINCT org_id FROM ${table}` }),
      )
      return rows.map(({ org_id }) => org_id)
    }
    assert.deepEqual(await ownersSeenBy(caller), [caller.org_id], table)
    assert.ok(
      (await ownersSeenBy(stranger)).every((org) => org === stranger.org_id),
      table,
    )
  }
  const { rowCount } = await deps.db.asOrg(stranger.org_id, (q) => q.query({ text: `UPDATE sandboxes SET name = 'x'` }))
  assert.equal(rowCount, 0)
})

test('days of usage and runs are seen and changed only by their organization and the system, and without a scope by nobody', async () => {
  const { deps, caller } = control
  const { id } = await create(true)
  const inserts = {
    usage_days: {
      text: `INSERT INTO usage_days (org_id, sandbox_id, day, vcpu_ms, memory_mib_ms, disk_mib_ms, all_day_vcpus, all_day_memory_mib, all_day_disk_mib)
        VALUES ($1, $2, '2026-01-02', 1, 1, 1, 0, 0, 0)`,
      rows: 1,
    },
    runs: {
      text: `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, opened_at, started_at, ended_at)
        VALUES (uuidv7(), $1, $2, 1, 1, '2026-01-02', '2026-01-02', '2026-01-03')`,
      rows: 2, // the open one of the sandbox, too
    },
  }
  const values = [caller.org_id, id]
  for (const [table, { text, rows }] of Object.entries(inserts)) {
    await assert.rejects(
      deps.db.asOrg(stranger.org_id, (q) => q.query({ text, values })),
      /row-level security/,
    )
    await deps.db.asOrg(caller.org_id, (q) => q.query({ text, values }))
    const update = { text: `UPDATE ${table} SET sandbox_id = sandbox_id WHERE sandbox_id = $1`, values: [id] }
    const counts = async (q: Queryable): Promise<number> => (await q.query(update)).rowCount
    assert.equal(await deps.db.asOrg(caller.org_id, counts), rows)
    assert.equal(await deps.db.asOrg(stranger.org_id, counts), 0)
    assert.equal(await deps.db.asSystem(counts), rows)
    const countsIn = (scope: string): Promise<number> =>
      deps.db.transaction('system', async (tx) => {
        await tx.query({ text: `SELECT set_config('sandyard.org', $1, true)`, values: [scope] })
        return counts(tx)
      })
    assert.equal(await countsIn(''), 0)
    await assert.rejects(countsIn('nonsense'), /invalid input syntax for type uuid/)
  }
})

test('each change records its events in order, and reads record none', async () => {
  const { deps, caller } = control
  const eventsOf = async (change: () => Promise<unknown>): Promise<readonly string[]> => {
    const before = (await typesOf()).length
    await change()
    return (await typesOf()).slice(before)
  }
  const expected: readonly (readonly [() => Promise<unknown>, readonly string[]])[] = [
    [() => create(false), ['sandbox_created']],
    [() => create(true), ['sandbox_created', 'sandbox_starting']],
    [() => renameSandbox(deps, caller, { id: made.id }, { name: 'another' }), ['sandbox_renamed']],
    [() => startSandbox(deps, caller, { id: made.id }, { waitMs: null, signal: never }), ['sandbox_starting']],
    [() => startSandbox(deps, caller, { id: made.id }, { waitMs: null, signal: never }), []],
    [() => stopSandbox(deps, caller, { id: made.id }), ['sandbox_stopped']],
    [() => getSandbox(deps, caller, { id: made.id }), []],
    [() => deleteSandbox(deps, caller, { id: made.id }), ['sandbox_deleted']],
    [async () => deleteSandbox(deps, caller, { id: (await create(true)).id }), ['sandbox_created', 'sandbox_starting', 'sandbox_stopped', 'sandbox_deleted']], // prettier-ignore
    [
      () => saveCredential(deps, caller, { host: 'h.example', username: 'u', password: 'p' }),
      ['registry_credential_saved'],
    ],
    [() => createApiKey(deps, caller, { name: 'k', scopes: SCOPES, expires_at: null }), ['api_key_created']],
  ]
  const made = await create(false)
  for (const [change, types] of expected) assert.deepEqual(await eventsOf(change), types, change.toString())
})

test('an event is written in the transaction of its change, so a change whose event can’t be written is rolled back', async () => {
  const { deps, caller } = control
  const made = await create(false)
  await control.asOwner('ALTER TABLE events ADD CONSTRAINT no_more CHECK (false) NOT VALID')
  try {
    await assert.rejects(create(true))
    await assert.rejects(startSandbox(deps, caller, { id: made.id }, { waitMs: null, signal: never }))
    await assert.rejects(renameSandbox(deps, caller, { id: made.id }, { name: 'not-told' }))
    await assert.rejects(deleteSandbox(deps, caller, { id: made.id }))
    await assert.rejects(createApiKey(deps, caller, { name: 'k', scopes: SCOPES, expires_at: null }))
  } finally {
    await control.asOwner('ALTER TABLE events DROP CONSTRAINT no_more')
  }
  assert.deepEqual(await getSandbox(deps, caller, { id: made.id }), made)
})

test('an event can be neither changed nor deleted, not even by the program itself or the owner of the table', async () => {
  for (const text of [`UPDATE events SET event_type = 'x'`, 'DELETE FROM events']) {
    await assert.rejects(
      control.deps.db.asSystem((q) => q.query({ text })),
      /permission denied/,
    )
    await assert.rejects(control.asOwner(text), /append-only/)
  }
})

test('a revoked key is refused once its cache entry is too old, an expired key at once, and an unknown key always', async () => {
  const clock = makeTestClock()
  const deps = makeControlDeps({ ...control.deps, clock })
  const key = await addKey(deps, control.caller.org_id)
  assert.equal((await authenticate(deps, key))?.org_id, control.caller.org_id)
  await control.deps.db.asSystem((q) => q.query({ text: `UPDATE api_keys SET revoked_at = now() WHERE name = 'k'` }))
  clock.advance(999)
  assert.notEqual(await authenticate(deps, key), null)
  clock.advance(1)
  assert.equal(await authenticate(deps, key), null)
  const expiring = await addKey(deps, control.caller.org_id, { expires_at: new Date(clock.now().getTime() + 5_000) })
  assert.notEqual(await authenticate(deps, expiring), null)
  clock.advance(5_000)
  assert.equal(await authenticate(deps, expiring), null)
  for (const text of ['', 'msb_live_unknown', `${key} `]) assert.equal(await authenticate(deps, text), null)
})

test('a burst of requests with one key costs one look-up, and a failed look-up is not cached', async () => {
  let looks = 0
  let isAway = false
  const { db } = control.deps
  const asSystem: typeof db.asSystem = (fn) => {
    looks += 1
    return isAway ? Promise.reject(new Error('away')) : db.asSystem(fn)
  }
  const deps = makeControlDeps({ ...control.deps, db: { ...db, asSystem } })
  const key = await addKey(control.deps, control.caller.org_id)
  await Promise.all(Array.from({ length: 50 }, () => authenticate(deps, key)))
  assert.equal(looks, 1)
  const other = await addKey(control.deps, control.caller.org_id)
  isAway = true
  await assert.rejects(authenticate(deps, other), /away/)
  isAway = false
  assert.notEqual(await authenticate(deps, other), null)
})

test('of many processes that start at once, one creates the first organization, and its key is the only one', async () => {
  const database = await makeTestDatabase()
  const { deps } = control
  const db = await openDatabase({
    connectionString: database.url,
    tenantPoolSize: 2,
    systemPoolSize: 8,
    statementTimeoutMs: 20_000,
    log: deps.log,
  })
  try {
    const own = makeControlDeps({ ...deps, db })
    const made = await Promise.all(Array.from({ length: 8 }, () => createFirstOrg(own, null)))
    const [first, ...others] = made.filter((org) => org !== null)
    assert.ok(first !== undefined && others.length === 0)
    assert.equal((await authenticate(own, first.key))?.org_id, first.org_id)
    for (const table of ['orgs', 'users', 'members', 'volumes', 'api_keys']) {
      const { rows } = await db.asSystem((q) => q.query({ text: `SELECT 1 AS one FROM ${table}` }))
      assert.equal(rows.length, 1, table)
    }
  } finally {
    await db.close()
    await database.close()
  }
})
