import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Registry } from 'prom-client'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { OrgQueueFull } from '../../../src/domain/requests/org-queue-full.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../../../src/http/server/server.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import { makeIdempotencyClaims } from '../../../src/control/requests/idempotency-claims.ts'
import { claimIdempotencyKey } from '../../../src/control/requests/idempotency.ts'
import { callWith, type CallUseCase } from '../../../src/http/requests/call-use-case.ts'
import { makeRequestLimits, type RequestLimits } from '../../../src/http/requests/request-limits.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { PIECE_SIZE } from '../../../src/lib/turns/next-turn.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeSeal } from '../../../src/lib/seal.ts'
import { makePruneIdempotencyKeysLoop } from '../../../src/loops/prune.ts'
import { countKeys } from '../../../src/store/requests/idempotency.ts'
import type { Database } from '../../../src/store/postgres/database.ts'
import { OPERATIONS, type OperationId } from '../../../src/contract/operations.ts'
import type { Operation } from '../../../src/contract/operation.ts'
import {
  EXAMPLE_REQUESTS,
  filePath,
  openBusyWorld,
  createExampleObjects,
  type KeyedOperation,
  type ExampleObjects,
} from '../../support/every-operation.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { operationIds } from '../../support/contract.ts'
import { send, type RequestParts, type ProblemReply } from '../../support/send.ts'
import { callFakes, type UseCases } from '../../support/use-cases.ts'
import { waitUntil } from '../../support/wait.ts'
import { watchStatements } from '../../support/watch-statements.ts'

const { world, caller, key } = await openBusyWorld()
const operatorKey = await addKey(world.control.deps, caller.org_id, { isOperator: true })

const isPost = (id: OperationId): boolean => OPERATIONS[id].method === 'POST'
const posts = operationIds.filter((id): id is KeyedOperation => isPost(id) && OPERATIONS[id].access !== 'none')
let numbered = 0
const newKey = (): string => `key ${String(++numbered)}`

type Where = { readonly url?: string; readonly apiKey?: string }

function ask(
  id: KeyedOperation,
  asking: RequestParts,
  idempotencyKey: string,
  where: Where = {},
): Promise<ProblemReply> {
  const { url = world.url, apiKey = OPERATIONS[id].access === 'operator' ? operatorKey : key } = where
  const headers = { ...asking.headers, 'idempotency-key': idempotencyKey }
  return send(url, { id, key: apiKey, asking: { ...asking, headers } })
}

async function count(table: string): Promise<number> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({ text: `SELECT count(*) AS count FROM ${table}` }),
  )
  return rows[0]?.count ?? 0
}

/** Creates the objects that the example requests name, with a file in the volume. */
async function prepare(): Promise<ExampleObjects> {
  const things = await createExampleObjects(world, caller)
  const asking = { params: { id: things.volume.id }, headers: filePath('kept.txt'), body: Buffer.from('kept') }
  assert.equal((await send(world.url, { id: 'write_volume_file', key, asking })).status, 200)
  return things
}

test('every POST that is repeated with its key gets the stored reply and records no second event', async () => {
  for (const id of posts) {
    const asking = EXAMPLE_REQUESTS[id].ask(await prepare())
    const idempotencyKey = newKey()
    const first = await ask(id, asking, idempotencyKey)
    assert.equal(first.status, 200, `${id}: ${first.text}`)
    assert.equal(first.headers.get('idempotency-replayed'), null)
    const told = await countTold()
    const second = await ask(id, asking, idempotencyKey)
    assert.deepEqual([second.status, second.text], [200, first.text], id)
    assert.equal(second.headers.get('idempotency-replayed'), 'true')
    assert.equal(second.headers.get('etag'), first.headers.get('etag'))
    assert.equal(await countTold(), told, `${id} did something a second time`)
  }
})

test('a POST whose server died before it stored the reply is not executed again, and the retry gets a reply with the result', async () => {
  const dying = await makeDyingServer()
  try {
    for (const id of posts) {
      const asking = EXAMPLE_REQUESTS[id].ask(await prepare())
      const idempotencyKey = newKey()
      const lost = await ask(id, asking, idempotencyKey, { url: dying.url })
      assert.equal(lost.status, 200, `${id}: ${lost.text}`)
      const told = await countTold()
      await endClaims()
      const retried = await ask(id, asking, idempotencyKey)
      const { isResumable }: Operation = OPERATIONS[id]
      if (isResumable === true) assert.equal(retried.status, 200, `${id}: ${retried.text}`)
      else assert.deepEqual([id, retried.status, retried.code], [id, 409, 'idempotency_reply_lost'])
      assert.equal(JSON.parse(retried.text).id, isResumable === true ? JSON.parse(lost.text).id : undefined)
      assert.equal(JSON.parse(retried.text).key, isResumable === true ? JSON.parse(lost.text).key : undefined)
      assert.equal(await countTold(), told + (id === 'make_volume_folder' ? 1 : 0), `${id} was done a second time`)
      const again = await ask(id, asking, idempotencyKey)
      assert.deepEqual([again.status, again.text], [retried.status, retried.text])
    }
  } finally {
    await dying.close()
  }
})

test('a POST whose server certainly died before it did anything is carried out by the retry', async () => {
  for (const id of posts) {
    const { ask: example, leaves } = EXAMPLE_REQUESTS[id]
    const asking = example(await prepare())
    const idempotencyKey = newKey()
    const dying = await makeDyingServer({ doesNothing: true })
    const lost = await ask(id, asking, idempotencyKey, { url: dying.url })
    assert.equal(lost.status, 500, `${id}: ${lost.text}`)
    await dying.close()
    const told = await countTold()
    await endClaims()
    const retried = await ask(id, asking, idempotencyKey)
    const { isResumable }: Operation = OPERATIONS[id]
    assert.equal(retried.status, isResumable === true ? 200 : 409, `${id}: ${retried.text}`)
    assert.equal((await countTold()) > told, isResumable === true && leaves.length > 0, id)
  }
})

test('a retried start whose run has ended opens no second run, and a retried stop does not stop a later run', async () => {
  const dying = await makeDyingServer()
  const { idle } = await prepare()
  const asking = { params: { sandbox_id: idle.id } }
  const [startKey, stopKey] = [newKey(), newKey()]
  const status = async (): Promise<string> => (await world.statusOf(asId<SandboxId>(idle.id))).status
  await ask('start_sandbox', asking, startKey, { url: dying.url })
  await waitUntil(async () => (await status()) === 'running')
  await ask('stop_sandbox', asking, stopKey, { url: dying.url })
  await waitUntil(async () => (await status()) === 'stopped')
  await endClaims()
  const started = await ask('start_sandbox', asking, startKey)
  assert.deepEqual([started.status, JSON.parse(started.text).status], [200, 'stopped'])
  await ask('start_sandbox', asking, newKey())
  await waitUntil(async () => (await status()) === 'running')
  const stopped = await ask('stop_sandbox', asking, stopKey)
  assert.deepEqual([stopped.status, JSON.parse(stopped.text).status], [200, 'running'])
  assert.equal(await status(), 'running')
  await dying.close()
})

test('a create that was refused by the organization’s queue after it was done is not executed again', async (t) => {
  const { deps } = world.control
  let isCrowded = false
  const db: Database = {
    ...deps.db,
    asOrg: (org, fn) => (isCrowded ? Promise.reject(new OrgQueueFull()) : deps.db.asOrg(org, fn)),
    transaction: async (scope, fn) => {
      const answer = await deps.db.transaction(scope, fn)
      isCrowded ||= scope === 'system' // the sandbox is created, and its run has a worker
      return answer
    },
  }
  const app = serverOf(callWith(makeControlDeps({ ...deps, db })))
  t.after(() => app.close())
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const before = await count('sandboxes')
  const idempotencyKey = newKey()
  const asking = {
    body: { image: 'registry.example/box:1' },
    query: { start: 'true', wait_for: 'running', wait_timeout: '1' },
  }
  const refused = await ask('create_sandbox', asking, idempotencyKey, { url })
  assert.deepEqual([refused.status, await count('sandboxes')], [429, before + 1])
  const retried = await ask('create_sandbox', asking, idempotencyKey)
  assert.deepEqual([retried.status, await count('sandboxes')], [200, before + 1])
})

test('an attempt whose claim another attempt has taken over writes nothing any more', async () => {
  const { deps } = world.control
  const request = { key: newKey(), request_sha256: Buffer.alloc(32), signal: new AbortController().signal }
  const first = await claimIdempotencyKey(deps, caller, request)
  await endClaims()
  const second = await claimIdempotencyKey(deps, caller, request)
  assert.ok(first.kind === 'serve' && second.kind === 'serve' && second.attempt.isRetry)
  assert.equal(second.attempt.resourceId, first.attempt.resourceId)
  const { attempt } = first
  await assert.rejects(
    deps.db.asOrg(caller.org_id, (q) => attempt.saveNote(q, 'late')),
    { code: 'idempotency_key_in_use' },
  )
  const reply = { status: 200, headers: {}, body: '{}' }
  await first.end({ kind: 'replied', reply: { ...reply, body: '"late"' } })
  await second.end({ kind: 'replied', reply })
  const third = await claimIdempotencyKey(deps, caller, request)
  assert.deepEqual(third, { kind: 'replay', reply })
})

test('the retry of a stop whose If-Match was never checked is refused once the sandbox has changed', async (t) => {
  const { deps } = world.control
  const { running } = await prepare()
  const db: Database = {
    ...deps.db,
    transaction: (scope, fn) =>
      scope === 'system' ? Promise.reject(new Error('the server died')) : deps.db.transaction(scope, fn),
  }
  const app = serverOf(callWith(makeControlDeps({ ...deps, db })))
  t.after(() => app.close())
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const params = { sandbox_id: running.id }
  const shown = await send(world.url, { id: 'get_sandbox', key, asking: { params } })
  const asking = { params, headers: { 'if-match': shown.headers.get('etag') ?? '' } }
  const idempotencyKey = newKey()
  assert.equal((await ask('stop_sandbox', asking, idempotencyKey, { url })).status, 500)
  const renaming = { params, body: { name: 'renamed-meanwhile' } }
  assert.equal((await send(world.url, { id: 'update_sandbox', key, asking: renaming })).status, 200)
  const retried = await ask('stop_sandbox', asking, idempotencyKey)
  assert.deepEqual([retried.status, retried.code], [412, 'precondition_failed'])
  assert.equal((await world.statusOf(asId<SandboxId>(running.id))).status, 'running')
})

test('a reply and a note that were sealed with a lost key give idempotency_reply_lost, are logged once, and hold no claim', async (t) => {
  const { deps } = world.control
  const warnings: string[] = []
  const log = { ...deps.log, warn: (_: object, message: string) => void warnings.push(message) }
  const seal = makeSeal(systemRandom.bytes(32), systemRandom)
  const app = serverOf(callWith(makeControlDeps({ ...deps, seal, log })))
  t.after(() => app.close())
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const asking = { body: { name: 'of-another-seal' } }
  const before = await count('volumes')
  const dying = await makeDyingServer()
  t.after(() => dying.close())
  const [replied, noted] = [newKey(), newKey()]
  await ask('create_volume', asking, replied)
  await ask('create_volume', { body: { name: 'noted-by-another-seal' } }, noted, { url: dying.url })
  await endClaims()
  for (let tries = 0; tries < 2; tries += 1) {
    const again = await ask('create_volume', asking, replied, { url })
    const retried = await ask('create_volume', { body: { name: 'noted-by-another-seal' } }, noted, { url })
    for (const { status, code, message } of [again, retried]) {
      assert.deepEqual([status, code], [409, 'idempotency_reply_lost'])
      assert.match(message, /sealed with a key that this server does not have/)
    }
  }
  const other = await ask('create_volume', { body: { name: 'other' } }, replied, { url })
  assert.deepEqual([other.status, other.code], [409, 'idempotency_key_reused'])
  assert.equal(await count('volumes'), before + 2)
  assert.equal(warnings.length, 1)
  // A server with the old sealing key can still read the reply and the note.
  assert.equal((await ask('create_volume', asking, replied)).status, 200)
  assert.equal((await ask('create_volume', { body: { name: 'noted-by-another-seal' } }, noted)).status, 200)
})

test('an expired key counts as a new one, and the loop deletes it', async () => {
  const { deps } = world.control
  const idempotencyKey = newKey()
  const first = await ask('create_volume', { body: { name: 'first-of-a-day' } }, idempotencyKey)
  await deps.db.asSystem((q) => q.query({ text: `UPDATE idempotency SET expires_at = now() - interval '1 second'` }))
  const second = await ask('create_volume', { body: { name: 'next-of-a-day' } }, idempotencyKey)
  assert.deepEqual([first.status, second.status], [200, 200])
  await makePruneIdempotencyKeysLoop(deps).run(new AbortController().signal)
  assert.equal(await count('idempotency'), 1)
})

/**
 * Starts a server that claims idempotency keys and then behaves as if it died before it stored the reply. It has
 * carried out the request by then, unless `doesNothing`.
 */
async function makeDyingServer(how: { readonly doesNothing?: boolean } = {}) {
  const made = makeControlDeps(world.control.deps)
  // A dead process doesn't renew its claims.
  const deps = {
    ...made,
    idempotencyClaims: { ...made.idempotencyClaims, keepRenewed: () => () => undefined },
  }
  const claimOnly: UseCases['claimIdempotencyKey'] = async (...args) => {
    const claimed = await claimIdempotencyKey(deps, ...args)
    return claimed.kind === 'replay' ? claimed : { ...claimed, end: () => Promise.resolve() }
  }
  const die = (): Promise<never> => Promise.reject(new Error('the server died'))
  const app = serverOf(
    how.doesNothing === true
      ? callFakes(deps, { claimIdempotencyKey: claimOnly, authenticate: (...args) => authenticate(deps, ...args) }, die)
      : callFakes(deps, { claimIdempotencyKey: claimOnly }),
  )
  return { url: await app.listen({ host: '127.0.0.1', port: 0 }), close: () => app.close() }
}

function serverOf(call: CallUseCase, limits?: RequestLimits) {
  return makeServer({
    call,
    ...(limits === undefined ? {} : { limits }),
    log: makeLog('silent'),
    uuids: world.control.deps.uuids,
    metrics: new Registry(),
    unreadyReasons: () => Promise.resolve([]),
    settings: DEFAULT_SERVER_SETTINGS,
  })
}

/** Makes every claim expire. */
async function endClaims(): Promise<void> {
  await world.control.deps.db.asSystem((q) =>
    q.query({ text: `UPDATE idempotency SET claimed_until = now() - interval '1 hour'` }),
  )
}

/** Counts the events that API keys caused. Loops and workers record others in the meantime. */
async function countTold(): Promise<number> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ readonly count: number }>({
      text: `SELECT count(*) AS count FROM events WHERE actor ->> 'kind' = 'api_key'`,
    }),
  )
  return rows[0]?.count ?? 0
}

test('a key that is reused with another body, query, path or If-Match is refused, and nothing is done', async () => {
  const idempotencyKey = newKey()
  const body = { name: 'keyed', image: 'registry.example/box:1' }
  assert.equal((await ask('create_sandbox', { body }, idempotencyKey)).status, 200)
  const before = await count('sandboxes')
  const others: readonly RequestParts[] = [
    { body: { ...body, name: 'other' } },
    { body, query: { start: 'true' } },
    { body, headers: { 'if-match': '*' } },
  ]
  for (const other of others.slice(0, 2)) {
    const { status, code } = await ask('create_sandbox', other, idempotencyKey)
    assert.deepEqual([status, code], [409, 'idempotency_key_reused'])
  }
  const { code } = await ask('create_volume', { body: { name: 'other' } }, idempotencyKey)
  assert.equal(code, 'idempotency_key_reused')
  assert.equal(await count('sandboxes'), before)
})

test('a refusal is stored too: the retry gets it even if the request would succeed now', async () => {
  const idempotencyKey = newKey()
  const taken = { name: 'taken', image: 'registry.example/box:1' }
  const holder = await ask('create_sandbox', { body: taken }, newKey())
  const refused = await ask('create_sandbox', { body: taken }, idempotencyKey)
  assert.deepEqual([refused.status, refused.code], [409, 'name_already_exists'])
  const { id } = JSON.parse(holder.text)
  assert.equal(
    (await send(world.url, { id: 'delete_sandbox', key, asking: { params: { sandbox_id: id } } })).status,
    200,
  )
  const again = await ask('create_sandbox', { body: taken }, idempotencyKey)
  assert.deepEqual([again.status, again.text], [refused.status, refused.text])
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
})

test('a large reply is stored and repeated as it was sent', async () => {
  const value = 'äöü "quoted"\n𝄞'.repeat(40_000)
  const body = { name: 'large', image: 'registry.example/box:1', env: [{ key: 'A', value }] }
  const idempotencyKey = newKey()
  const first = await ask('create_sandbox', { body }, idempotencyKey)
  assert.equal(first.status, 200)
  assert.equal(JSON.parse(first.text).spec.env[0].value, value)
  const again = await ask('create_sandbox', { body }, idempotencyKey)
  assert.ok(again.status === 200 && again.text === first.text)
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
  assert.equal(again.headers.get('etag'), first.headers.get('etag'))
  const other = { ...body, env: [{ key: 'A', value: `${value}!` }] } // differs in its last piece only
  assert.equal((await ask('create_sandbox', { body: other }, idempotencyKey)).code, 'idempotency_key_reused')
})

test('a large stored reply is read in parts of at most half a MiB, if somebody reads it, and is refused if it was sealed with a lost key', async (t) => {
  const { deps } = world.control
  const body = { name: 'in-parts', image: 'registry.example/box:1', env: [{ key: 'A', value: 'äb'.repeat(500_000) }] }
  const idempotencyKey = newKey()
  const first = await ask('create_sandbox', { body }, idempotencyKey)
  const sizes: number[] = []
  const read: (string | undefined)[] = []
  const db = watchStatements(deps.db, ({ name }, rows) => {
    read.push(name)
    for (const value of rows.flatMap((row) => Object.values(row))) if (Buffer.isBuffer(value)) sizes.push(value.length)
  })
  const rate = { perSec: 0, burst: 0 }
  const most = { orgRequestsInFlight: 100, orgBodiesMib: 10, bodiesMib: 10, orgRepliesMib: 64 }
  const limits = makeRequestLimits(
    { ...most, rates: { key: rate, org: rate, failedAuthentications: rate } },
    systemClock,
  )
  const replay = async (seal = deps.seal): Promise<ProblemReply> => {
    const app = serverOf(callWith(makeControlDeps({ ...deps, seal, db })), limits)
    t.after(() => app.close())
    const url = await app.listen({ host: '127.0.0.1', port: 0 })
    return ask('create_sandbox', { body }, idempotencyKey, { url })
  }
  const again = await replay()
  assert.ok(again.status === 200 && again.text === first.text)
  assert.equal(Math.max(...sizes), PIECE_SIZE)
  read.length = 0
  const release = limits.replyBytes.acquire(caller.org_id, limits.replyBytesMax) // by replies that nobody reads
  const refused = await replay()
  release()
  assert.deepEqual([refused.status, refused.code], [429, 'rate_limited'])
  assert.deepEqual([read.includes('idempotency.find'), read.includes('idempotency.findReplyPart')], [true, false])
  const lost = await replay(makeSeal(systemRandom.bytes(32), systemRandom))
  assert.deepEqual([lost.status, lost.code], [409, 'idempotency_reply_lost'])
})

test('two organizations can use the same idempotency key without affecting each other', async () => {
  const stranger = await addOrg(world.control.deps, 'with-keys')
  const strangersKey = await addKey(world.control.deps, stranger.org_id)
  const idempotencyKey = newKey()
  const body = { name: 'shared-name', labels: {} }
  const ours = await ask('create_volume', { body }, idempotencyKey)
  const theirs = await ask('create_volume', { body }, idempotencyKey, { apiKey: strangersKey })
  assert.deepEqual([ours.status, theirs.status], [200, 200])
  assert.equal(theirs.headers.get('idempotency-replayed'), null)
  assert.notEqual(JSON.parse(ours.text).id, JSON.parse(theirs.text).id)
})

test('fifty requests with one key at once create one sandbox and get one reply', async () => {
  const idempotencyKey = newKey()
  const before = await count('sandboxes')
  const asking = { body: { image: 'registry.example/box:1' }, query: { start: 'true' } }
  const answers = await Promise.all(Array.from({ length: 50 }, () => ask('create_sandbox', asking, idempotencyKey)))
  assert.deepEqual(
    answers.map(({ status, text }) => `${String(status)} ${text}`),
    answers.map(() => `200 ${answers[0]?.text ?? ''}`),
  )
  assert.equal(answers.filter(({ headers }) => headers.get('idempotency-replayed') === null).length, 1)
  assert.equal(await count('sandboxes'), before + 1)
})

test('a key is one header of 1 to 255 printable characters, and only POST takes it', async () => {
  const body = { name: 'unfit' }
  for (const unfit of ['', 'x'.repeat(256), 'tab\there']) {
    const { status, code } = await ask('create_volume', { body }, unfit)
    assert.deepEqual([status, code], [400, 'invalid_request'], JSON.stringify(unfit))
  }
  const things = await createExampleObjects(world, caller)
  for (const id of operationIds) {
    const { method, access, reply }: Operation = OPERATIONS[id]
    if (method === 'POST' || method === 'GET' || access === 'none' || reply.kind !== 'json') continue
    const keyedId = posts.concat(operationIds.filter((one): one is KeyedOperation => one === id)).at(-1)
    if (keyedId === undefined) continue
    const { status, code, message } = await ask(keyedId, EXAMPLE_REQUESTS[keyedId].ask(things), newKey())
    assert.deepEqual([id, status, code], [id, 400, 'invalid_request'])
    assert.match(message, /idempotency-key/)
  }
})

test('no row holds the secret of a new API key, although its reply is stored', async () => {
  const idempotencyKey = newKey()
  const body = { name: 'secret', scopes: ['read'] }
  const first = await ask('create_api_key', { body }, idempotencyKey)
  const { key: secret } = JSON.parse(first.text)
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query<{ readonly row: string }>({ text: 'SELECT i::text AS row FROM idempotency i' }),
  )
  const hex = Buffer.from(secret).toString('hex')
  assert.ok(rows.length > 0)
  for (const { row } of rows) assert.ok(!row.includes(secret) && !row.includes(hex))
  assert.equal((await ask('create_api_key', { body }, idempotencyKey)).text, first.text)
})

test('a new key is refused once an organization has too many, or too many bytes of replies', async () => {
  const { deps } = world.control
  for (const [keys, bytes, isBelow] of [
    [99_999, 1024 ** 3 - 1, true],
    [100_000, 0, false],
    [1, 1024 ** 3, false],
  ] as const) {
    const counted: Database = {
      ...deps.db,
      asOrg: (org, work) => deps.db.asOrg(org, (q) => work({ ...q, query: async (statement) => {
        const answer = await q.query<never>(statement)
        return typeof statement === 'object' && statement.name === 'idempotency.countKeys' ? { ...answer, rows: [{ keys, bytes }] as never[] } : answer
      } })),
    } // prettier-ignore
    const claims = makeIdempotencyClaims({ ...deps, db: counted })
    assert.equal(await claims.isBelowKeyLimit(caller.org_id), isBelow)
  }
  const stored = await deps.db.asOrg(caller.org_id, (q) => countKeys(q, caller.org_id, 100))
  assert.ok(stored.keys > 0 && stored.bytes > 0, JSON.stringify(stored))
})
