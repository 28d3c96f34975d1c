import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import { WebSocket } from 'ws'
import type { Operation } from '../../../src/contract/operation.ts'
import { OPERATIONS } from '../../../src/contract/operations.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import type { Caller, Scope } from '../../../src/domain/orgs/caller.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import {
  createUnusableKey,
  EXAMPLE_REQUESTS,
  makeBusyWorld,
  createExampleObjects,
  type KeyedOperation,
  type ExampleObjects,
} from '../../support/every-operation.ts'
import { operationIds } from '../../support/contract.ts'
import { attack } from '../../support/security-attack.ts'
import { send, type ProblemReply } from '../../support/send.ts'
import type { WorkerWorld } from '../../support/worker-world.ts'

// Every operation is sent by callers that must be refused. The requested objects belong to another organization.

/** Operations that these tests don't send. The list must stay empty. */
const NOT_COVERED: readonly KeyedOperation[] = []

const keyed = operationIds.filter((id): id is KeyedOperation => OPERATIONS[id].access !== 'none')
const covered = keyed.filter((id) => !NOT_COVERED.includes(id))

const FACTS = { target: 'neighbours', attacker: 'another organization', finding: null } as const

let world: WorkerWorld
let owner: Caller
let stranger: Caller
let strangersKey: string
let things: ExampleObjects
before(async () => {
  world = await makeBusyWorld()
  owner = world.control.caller
  stranger = await addOrg(world.control.deps, 'stranger')
  strangersKey = await addKey(world.control.deps, stranger.org_id)
  things = await createExampleObjects(world, owner)
})
after(() => world.close())

test('no operation is left out', () => {
  assert.deepEqual(Object.keys(EXAMPLE_REQUESTS).toSorted(), keyed.toSorted())
  assert.deepEqual(NOT_COVERED, [])
})

attack(
  'uses every operation with no key, or an unknown, an expired or a revoked one',
  { ...FACTS, attacker: 'a client without a valid key' },
  async () => {
    const keys = [
      null,
      'msb_live_made_up',
      await createUnusableKey(world, owner.org_id, 'expired'),
      await createUnusableKey(world, owner.org_id, 'revoked'),
    ]
    const before = await rowsOf(owner)
    for (const id of covered)
      for (const key of keys) {
        const { status, code, message } = await ask(id, key)
        assert.deepEqual([id, status, code, message], [id, 401, 'invalid_api_key', 'unauthorized'])
      }
    assert.deepEqual(await rowsOf(owner), before)
    return {
      tries: covered.length * keys.length,
      outcome: `each of ${String(covered.length)} operations answered 401 and changed nothing`,
    }
  },
)

test('every operation refuses a key without its scope, names the scope, and does nothing', async () => {
  const held: Readonly<Record<'write' | 'admin', readonly Scope[]>> = { write: ['read'], admin: ['read', 'write'] }
  const before = await rowsOf(owner)
  for (const id of covered) {
    const { access }: Operation = OPERATIONS[id]
    if (access !== 'write' && access !== 'admin') continue
    const { status, code, message } = await ask(
      id,
      await addKey(world.control.deps, owner.org_id, { scopes: held[access] }),
    )
    assert.deepEqual([id, status, code], [id, 403, 'forbidden'])
    assert.ok(message.includes(access), message)
  }
  const after = await rowsOf(owner)
  assert.deepEqual({ ...after, api_keys: [] }, { ...before, api_keys: [] })
})

attack('reads or changes the objects of another organization by every operation', FACTS, async () => {
  const before = await rowsOf(owner)
  for (const id of covered) {
    const { status, text, code } = await ask(id, strangersKey)
    const isNamed = OPERATIONS[id].path.includes('{')
    if (OPERATIONS[id].access === 'operator') assert.deepEqual([status, code], [403, 'forbidden'])
    else if (isNamed) assert.equal(status, 404, `${id}: ${text}`)
    else assert.ok(status === 200 || code === 'volume_not_found' || code === 'sandbox_not_found', `${id}: ${text}`)
    for (const secret of [owner.org_id, ...secretsOf(things)])
      assert.ok(!text.includes(secret), `${id} shows ${secret}`)
  }
  assert.deepEqual(await rowsOf(owner), before)
  return {
    tries: covered.length,
    outcome: `no reply of ${String(covered.length)} operations showed a name or id, and no row changed`,
  }
})

test('routes without a key show nothing of any organization', async () => {
  for (const id of operationIds.filter((one) => OPERATIONS[one].access === 'none')) {
    const text = await (await fetch(`${world.url}${OPERATIONS[id].path}`)).text()
    for (const secret of [owner.org_id, ...secretsOf(things)])
      assert.ok(!text.includes(secret), `${id} shows ${secret}`)
  }
})

test('a query that forgets its filter sees one organization, in every table that has one', async () => {
  const { deps } = world.control
  const tables = await tablesOfTenants()
  assert.ok(tables.length >= 12, tables.join())
  for (const who of [owner, stranger])
    for (const table of tables) {
      const { rows } = await deps.db.asOrg(who.org_id, (q) =>
        q.query<{ org_id: string }>({ text: `SELECT DISTINCT org_id FROM ${table}` }),
      )
      assert.ok(
        rows.every(({ org_id }) => org_id === who.org_id),
        `${table} shows a stranger's rows`,
      )
    }
})

test('the stranger’s key still works for its own organization, so no refusal was about the key', async () => {
  assert.equal((await authenticate(world.control.deps, strangersKey))?.org_id, stranger.org_id)
})

async function ask(id: KeyedOperation, key: string | null): Promise<Omit<ProblemReply, 'headers'>> {
  const asking = EXAMPLE_REQUESTS[id].ask(things)
  if (OPERATIONS[id].reply.kind === 'websocket') return await dial(asking.params?.['sandbox_id'] ?? '', key)
  return await send(world.url, { id, key, asking })
}

async function dial(sandbox: string, key: string | null): Promise<Omit<ProblemReply, 'headers'>> {
  const url = `${world.url.replace('http', 'ws')}/v1/sandboxes/${sandbox}/agent`
  const socket = new WebSocket(url, { headers: key === null ? {} : { authorization: `Bearer ${key}` } })
  socket.on('error', () => socket.terminate())
  const [, response] = await once(socket, 'unexpected-response')
  const text = Buffer.concat(await response.toArray()).toString()
  const { error } = JSON.parse(text)
  return { status: response.statusCode, text, code: error.code, message: error.message }
}

function secretsOf({ idle, running, volume, event_id, api_key_id, credential_id }: ExampleObjects): readonly string[] {
  return [idle.id, idle.name, running.id, running.name, volume.id, volume.name, event_id, api_key_id, credential_id]
}

async function tablesOfTenants(): Promise<readonly string[]> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ name: string }>({
      text: `SELECT table_name AS name FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
             WHERE column_name = 'org_id' AND table_schema = 'public' ORDER BY 1`,
    }),
  )
  return rows.map(({ name }) => name)
}

/** Columns that change without a request about the row. */
const MOVING: ReadonlySet<string> = new Set(['last_used_at', 'used_bytes', 'accrued_until'])

/** Every row of an organization by table, without the columns in `MOVING`. */
async function rowsOf({ org_id }: Caller): Promise<Readonly<Record<string, readonly unknown[]>>> {
  const found: Record<string, readonly unknown[]> = {}
  for (const table of await tablesOfTenants()) {
    if (table === 'org_limits') continue
    const { rows } = await world.control.deps.db.asSystem((q) =>
      q.query<{ row: Record<string, unknown> }>({
        text: `SELECT to_jsonb(t) AS row FROM ${table} t WHERE org_id = $1 ORDER BY 1`,
        values: [org_id],
      }),
    )
    found[table] = rows.map(({ row }) => Object.entries(row).filter(([column]) => !MOVING.has(column)))
  }
  return found
}
