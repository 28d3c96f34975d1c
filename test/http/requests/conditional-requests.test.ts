import { addKey } from '../../support/orgs.ts'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Operation } from '../../../src/contract/operation.ts'
import { OPERATIONS } from '../../../src/contract/operations.ts'
import { parseEtags, etagOf } from '../../../src/domain/requests/etag.ts'
import { operationIds } from '../../support/contract.ts'
import {
  EXAMPLE_REQUESTS,
  openBusyWorld,
  createExampleObjects,
  type KeyedOperation,
} from '../../support/every-operation.ts'
import { send, type RequestParts, type ProblemReply } from '../../support/send.ts'

const { world, caller, key } = await openBusyWorld()
const operatorKey = await addKey(world.control.deps, caller.org_id, { isOperator: true })

const keyed = operationIds.filter((id): id is KeyedOperation => OPERATIONS[id].access !== 'none')
const isTagged = (id: KeyedOperation): boolean => {
  const { reply }: Operation = OPERATIONS[id]
  return reply.kind === 'json' && reply.hasETag === true
}
const isMatched = (id: KeyedOperation): boolean => {
  const { checksIfMatch }: Operation = OPERATIONS[id]
  return checksIfMatch === true
}

function ask(
  id: KeyedOperation,
  asking: RequestParts,
  headers: Readonly<Record<string, string>> = {},
): Promise<ProblemReply> {
  const by = OPERATIONS[id].access === 'operator' ? operatorKey : key
  return send(world.url, { id, key: by, asking: { ...asking, headers: { ...asking.headers, ...headers } } })
}

test('every reply with one object has an ETag, no list has one, and a client that sends the current ETag gets 304', async () => {
  for (const id of keyed.filter((one) => OPERATIONS[one].method === 'GET' && OPERATIONS[one].reply.kind === 'json')) {
    const asking = EXAMPLE_REQUESTS[id].ask(await createExampleObjects(world, caller))
    const first = await ask(id, asking)
    const tag = first.headers.get('etag')
    assert.equal(tag !== null, isTagged(id), id)
    if (tag === null) continue
    for (const has of [tag, '*', `"other", W/${tag}`]) {
      const again = await ask(id, asking, { 'if-none-match': has })
      assert.deepEqual([again.status, again.text, again.headers.get('etag')], [304, '', tag], `${id} ${has}`)
    }
    const other = await ask(id, asking, { 'if-none-match': '"other"' })
    assert.deepEqual([other.status, other.text], [200, first.text], id)
    assert.equal((await ask(id, asking, { 'if-match': '"other"' })).status, 412, id)
    assert.equal((await ask(id, asking, { 'if-match': tag })).status, 200, id)
  }
})

test('a change with If-Match gets 412 if the object has changed, and is done if it has not', async () => {
  const reads: Partial<Record<KeyedOperation, KeyedOperation>> = {
    update_volume: 'get_volume',
    delete_volume: 'get_volume',
    revoke_api_key: 'get_api_key',
    remove_ssh_key: 'get_ssh_key',
    update_webhook: 'get_webhook',
    delete_webhook: 'get_webhook',
  }
  for (const id of keyed.filter(isMatched)) {
    const things = await createExampleObjects(world, caller)
    const asking = EXAMPLE_REQUESTS[id].ask(things)
    const refused = await ask(id, asking, { 'if-match': '"another"' })
    assert.deepEqual([id, refused.status, refused.code], [id, 412, 'precondition_failed'])
    const weak = await ask(id, asking, { 'if-match': `W/${JSON.parse(refused.text).error.details.accepted}` })
    assert.equal(weak.status, 412, id)
    const read = reads[id] ?? (id.endsWith('_by_name') ? 'get_sandbox_by_name' : 'get_sandbox')
    const isShown = id !== 'delete_registry_credential'
    const tag = isShown ? (await ask(read, { params: asking.params ?? {} })).headers.get('etag') : '*'
    const done = await ask(id, asking, { 'if-match': `"another", ${tag ?? ''}`.replace('"another", *', '*') })
    assert.equal(done.status, 200, `${id}: ${done.text}`)
  }
})

test('If-Match is refused if it is malformed, and on every operation that does not support it', async () => {
  const things = await createExampleObjects(world, caller)
  for (const id of keyed) {
    const { method, reply } = OPERATIONS[id]
    if (isMatched(id) || (method === 'GET' && isTagged(id)) || reply.kind !== 'json') continue
    const { status, code, message } = await ask(id, EXAMPLE_REQUESTS[id].ask(things), { 'if-match': '"a"' })
    assert.deepEqual([id, status, code], [id, 400, 'invalid_request'])
    assert.match(message, /if-match/)
  }
  const { status } = await ask('update_sandbox', EXAMPLE_REQUESTS.update_sandbox.ask(things), { 'if-match': 'no tag' })
  assert.equal(status, 400)
})

test('of many changes at once with the same If-Match exactly one is done', async () => {
  const things = await createExampleObjects(world, caller)
  const sandbox = { params: { sandbox_id: things.idle.id } }
  const volume = { params: { id: things.volume.id } }
  const tagOfSandbox = (await ask('get_sandbox', sandbox)).headers.get('etag') ?? ''
  const tagOfVolume = (await ask('get_volume', volume)).headers.get('etag') ?? ''
  const many = Array.from({ length: 12 }, (_, index) => index)
  const renames = many.map((index) =>
    ask('update_sandbox', { ...sandbox, body: { name: `racer-${String(index)}` } }, { 'if-match': tagOfSandbox }),
  )
  const labels = many.map((index) =>
    ask('update_volume', { ...volume, body: { labels: { racer: String(index) } } }, { 'if-match': tagOfVolume }),
  )
  for (const race of [renames, labels]) {
    const statuses = (await Promise.all(race)).map(({ status }) => status).toSorted((a, b) => a - b)
    assert.deepEqual(statuses, [200, ...many.slice(1).map(() => 412)])
  }
  const starts = many.map(() => ask('start_sandbox', sandbox, { 'if-match': '*' }))
  assert.deepEqual(new Set((await Promise.all(starts)).map(({ status }) => status)).has(412), false)
})

test('equal texts have equal ETags, others differ, and lists of ETags are parsed', () => {
  assert.equal(etagOf('a'), etagOf('a'))
  assert.notEqual(etagOf('a'), etagOf('b'))
  assert.deepEqual(parseEtags(`"a", W/"b"`), ['"a"', 'W/"b"'])
  assert.deepEqual(parseEtags(`"a,b"`), ['"a,b"'], 'a comma may be part of a tag')
  assert.deepEqual(parseEtags(`"a,b" ,W/"c"`), ['"a,b"', 'W/"c"'])
  assert.equal(parseEtags('*'), '*')
  for (const bad of ['', 'a', '"a" "b"', '*, "a"', '"a",', Array.from({ length: 33 }, () => '"a"').join()])
    assert.equal(parseEtags(bad), null, bad)
})
