import assert from 'node:assert/strict'
import { request, type IncomingHttpHeaders, type RequestOptions } from 'node:http'
import { after, before, describe, test } from 'node:test'
import type { OperationId } from '../../src/contract/operations.ts'
import { call, listAll, mustCall } from '../support/api.ts'
import { operationOf, refusedFields } from '../support/captured-outcomes.ts'
import { capturedBodies, capturedRequests } from '../support/contract.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import type { RequestParts } from '../support/send.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The contract over HTTP: `call` checks every reply against our schemas and the published API document
// (test/support/contract.ts).

const ABSENT_ID = '01890000-0000-7000-8000-000000000000'
/** One byte more than a body may have. */
const TOO_MANY_BYTES = 4 * 1024 * 1024 + 1

describe('the contract over HTTP', { skip: whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer({ SANDYARD_STOP_GRACE_MS: '2000' })
  })
  after(() => server.close())

  const makeOne = (name: string, runtime: object = {}) =>
    mustCall(server, 'create_sandbox', { body: { name, image: DEMO_IMAGE, runtime } })

  async function assertRefused(id: OperationId, asking: RequestParts, expected: string): Promise<string> {
    const answer = await call(server, id, asking)
    const seen = answer.isRefusal ? `${String(answer.status)} ${answer.body.error.code}` : String(answer.status)
    assert.equal(seen, expected, `${id} ${JSON.stringify(asking).slice(0, 300)} was answered ${answer.text}`)
    assert.ok(answer.headers.get('x-request-id'), 'every reply has a request id')
    return answer.text
  }

  test('every operation on one sandbox, by id and by name, gets a reply that the contract allows', async () => {
    // The sandbox ignores SIGTERM, so that requests during its grace time find it `stopping`.
    const created = await makeOne('round', { cmd: ['sh', '-c', 'trap "" TERM; while :; do sleep 1; done'] })
    const byId = { params: { sandbox_id: created.id } }
    const byName = { params: { name: 'round' } }
    assert.equal(created.status, 'created')
    assert.equal((await mustCall(server, 'get_sandbox', byId)).id, created.id)
    assert.equal((await mustCall(server, 'get_sandbox_by_name', byName)).id, created.id)
    const wait = { wait_for: 'running', wait_timeout: '30' }
    assert.equal((await mustCall(server, 'start_sandbox', { ...byId, query: wait })).status, 'running')
    assert.equal((await mustCall(server, 'stop_sandbox', byId)).status, 'stopping')
    await untilStatus('round', 'stopped')
    assert.equal((await mustCall(server, 'start_sandbox_by_name', { ...byName, query: wait })).status, 'running')
    assert.equal((await mustCall(server, 'stop_sandbox_by_name', byName)).status, 'stopping')
    assert.equal((await mustCall(server, 'stop_sandbox_by_name', byName)).id, created.id, 'stopping twice succeeds')
    const renamed = await mustCall(server, 'update_sandbox', { ...byId, body: { name: 'renamed' } })
    assert.deepEqual([renamed.name, renamed.slug], ['renamed', created.slug])
    const slugged = await mustCall(server, 'update_sandbox_by_name', {
      params: { name: 'renamed' },
      body: { slug: 'a-slug-of-mine' },
    })
    assert.equal(slugged.slug, 'a-slug-of-mine')
    await mustCall(server, 'delete_sandbox_by_name', { params: { name: 'renamed' } })
    await assertRefused('get_sandbox', byId, '404 sandbox_not_found')
    const second = await makeOne('round')
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: second.id } })
    const org = await mustCall(server, 'get_org')
    assert.equal(org.id, created.org_id)
    const events = await mustCall(server, 'list_events', { query: { limit: '100' } })
    const [newest] = events.data
    assert.ok(newest !== undefined)
    await mustCall(server, 'get_event', { params: { event_id: newest.id } })
    const types = new Set(events.data.map(({ event_type }) => event_type))
    for (const type of ['created', 'starting', 'placed', 'running', 'stopping', 'stopped', 'renamed', 'deleted'])
      assert.ok(types.has(`sandbox_${type}`), `no event sandbox_${type} among ${[...types].join(', ')}`)
    await Promise.all((['get_health', 'get_readiness', 'get_document'] as const).map((id) => mustCall(server, id)))
  })

  test('a sandbox that waits for capacity shows the reason when it is read alone, and not in a list', async () => {
    const body = { name: 'large', image: DEMO_IMAGE, resources: { vcpus: 200, memory_mib: 256 } }
    const { id } = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    const read = () => mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
    await waitUntil(async () => (await read()).status_reason === 'insufficient_capacity')
    const { status_details: details } = await read()
    assert.deepEqual([details?.position, details?.waiting], [1, 1])
    assert.deepEqual(details?.missing.map(({ kind, name, requested }) => [kind, name, requested]), [['resource', 'vcpus', 200]]) // prettier-ignore
    const listed = (await mustCall(server, 'list_sandboxes')).data.find((one) => one.id === id)
    assert.equal(listed?.status_details, undefined)
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
    const query = { start: 'true', wait_for: 'running', wait_timeout: '0', on_timeout: 'cancel' }
    await assertRefused('create_sandbox', { query, body }, '504 start_timed_out')
    await assertRefused('get_sandbox_by_name', { params: { name: 'large' } }, '404 sandbox_not_found')
    await assertRefused('create_sandbox', { query: { start: 'true', on_timeout: 'keep' }, body }, '400 invalid_request')
  })

  async function untilStatus(name: string, status: string): Promise<void> {
    const isThere = async (): Promise<boolean> =>
      (await mustCall(server, 'get_sandbox_by_name', { params: { name } })).status === status
    await waitUntil(isThere)
  }

  test('every recorded body of the public clients is accepted, or refused for the field that docs/clients.md names', async () => {
    const volumes = new Set(JSON.stringify(capturedBodies()).match(/(?<="type":"named",[^}]*"name":")[^"]+/g))
    for (const name of volumes) await mustCall(server, 'create_volume', { body: { name } })
    for (const { name, body } of capturedBodies()) {
      const answer = await call(server, 'create_sandbox', { body: { ...body, name: '' } })
      const { field = null } = Object(answer.isRefusal ? answer.body.error.details : {})
      assert.equal(field, refusedFields(body)[0] ?? null, `${name}: ${answer.text}`)
      const isOfNoSnapshot = answer.isRefusal && answer.body.error.code === 'snapshot_not_found'
      assert.ok(!answer.isRefusal || answer.status === 400 || isOfNoSnapshot, answer.text)
    }
    for (const { id } of await listAll(server)) await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
  })

  test('every other recorded request of the public clients is understood, or has no route', async () => {
    const { id } = await makeOne('recorded')
    const volume = (await mustCall(server, 'list_volumes'))[0]?.id ?? ''
    for (const { name, method, url, body } of capturedRequests()) {
      const target = url.startsWith('/v1/volumes') ? volume : id
      const path = url.replace('{id}', target).replace('{name}', 'recorded')
      const headers = { authorization: `Bearer ${server.key}`, 'content-type': 'application/json' }
      const response = await fetch(`${server.url}${path}`, { method, headers, body: JSON.stringify(body) })
      const text = await response.text()
      if (operationOf({ method, url }) === null) assert.ok([404, 405].includes(response.status), `${name}: ${text}`)
      else if (text.includes('"field":"dest_dir"'))
        assert.equal(response.status, 400, `${name}: ${text}`) // docs/guide/snapshots.md
      else assert.ok(response.status === 200 || [404, 409].includes(response.status), `${name}: ${text}`)
      if (response.status === 404) assert.match(text, /"code":"\w*not_found"/, name)
    }
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
  })

  test('a request without a valid key gets 401 from every operation, before any other check', async () => {
    for (const authorization of ['', 'Bearer ', 'Bearer wrong-key-of-nobody', `Basic ${server.key}`]) {
      const headers = { authorization }
      await assertRefused('list_sandboxes', { headers }, '401 invalid_api_key')
      await assertRefused('create_sandbox', { headers, body: Buffer.from('{not json') }, '401 invalid_api_key')
      await assertRefused('get_sandbox', { headers, params: { sandbox_id: 'x' } }, '401 invalid_api_key')
    }
  })

  test('a malformed request gets 400 invalid_request with the path of the wrong field', async () => {
    const image = DEMO_IMAGE
    const wrong = [
      ['list_sandboxes', { query: { limit: '0' } }, 'limit'],
      ['list_sandboxes', { query: { limit: '101' } }, 'limit'],
      ['list_sandboxes', { query: { limit: 'ten' } }, 'limit'],
      ['list_sandboxes', { query: { cursor: 'not-a-cursor' } }, 'cursor'],
      ['list_sandboxes', { query: { labels: '{"a":' } }, 'labels'],
      ['list_sandboxes', { query: { labels: '["a"]' } }, 'labels'],
      ['list_sandboxes', { query: { unknown: '1' } }, 'unknown'],
      ['get_sandbox', { params: { sandbox_id: 'not-a-uuid' } }, 'sandbox_id'],
      ['get_event', { params: { event_id: 'not-a-uuid' } }, 'event_id'],
      ['create_sandbox', { body: Buffer.from('{"name":') }, 'JSON'],
      ['create_sandbox', { body: Buffer.from('"text"') }, 'body'],
      ['create_sandbox', { body: { image, surprise: 1 } }, 'surprise'],
      ['create_sandbox', { body: { image, runtime: { surprise: 1 } } }, 'runtime.surprise'],
      ['create_sandbox', { body: { image, resources: { vcpus: '2' } } }, 'resources.vcpus'],
      ['create_sandbox', { body: { image, name: 'x'.repeat(129) } }, 'name'],
      ['create_sandbox', { body: { image, name: 'line\nbreak' } }, 'name'],
      ['create_sandbox', { body: { image, slug: 'Not_A_Slug' } }, 'slug'],
      ['create_sandbox', { body: { image, labels: { 'sandbox.x': '1' } } }, 'labels'],
      ['create_sandbox', { body: {} }, 'image'],
      ['create_sandbox', { body: { image }, query: { start: 'maybe' } }, 'start'],
      ['create_sandbox', { body: { image }, query: { start: 'true', wait_timeout: '5' } }, 'wait_timeout'],
      ['create_sandbox', { body: { image }, query: { start: 'true', wait_for: 'stopped' } }, 'wait_for'],
      [
        'create_sandbox',
        { body: { image }, query: { start: 'true', wait_for: 'running', wait_timeout: '301' } },
        'wait_timeout',
      ],
      [
        'create_sandbox',
        { body: { image }, query: { start: 'true', wait_for: 'running', wait_timeout: '-1' } },
        'wait_timeout',
      ],
    ] as const satisfies readonly (readonly [OperationId, RequestParts, string])[]
    for (const [id, asking, field] of wrong) {
      const text = await assertRefused(id, asking, '400 invalid_request')
      assert.ok(text.includes(field), `${text} does not name ${field}`)
    }
    assert.deepEqual(await listAll(server), [], 'nothing was made')
  })

  test('an object that does not exist or belongs to another organization gets 404', async () => {
    const params = { sandbox_id: ABSENT_ID, name: 'nobody', event_id: ABSENT_ID }
    const ids = [
      ...(['get_sandbox', 'delete_sandbox', 'start_sandbox', 'stop_sandbox'] as const),
      ...(['get_sandbox_by_name', 'delete_sandbox_by_name', 'start_sandbox_by_name', 'stop_sandbox_by_name'] as const),
    ]
    for (const id of ids) await assertRefused(id, { params }, '404 sandbox_not_found')
    for (const id of ['update_sandbox', 'update_sandbox_by_name'] as const)
      await assertRefused(id, { params, body: { name: 'other' } }, '404 sandbox_not_found')
    await assertRefused('get_event', { params }, '404 event_not_found')
  })

  test('an unknown route, a wrong method, a body too large and another media type have codes of their own', async () => {
    const headers = { authorization: `Bearer ${server.key}` }
    const tries = [
      [404, 'not_found', '/v1/nothing-here', { headers }],
      [405, 'method_not_allowed', '/v1/sandboxes', { headers, method: 'PUT' }],
      [413, 'payload_too_large', '/v1/sandboxes', posting('application/json', TOO_MANY_BYTES)],
      [415, 'unsupported_media_type', '/v1/sandboxes', posting('application/xml', 4)],
    ] as const
    for (const [status, code, path, options] of tries) {
      const { statusCode, head, body } = await answerTo(`${server.url}${path}`, options)
      const reply: { error: { code: string; details: unknown } } = JSON.parse(body)
      assert.deepEqual([statusCode, reply.error.code], [status, code])
      assert.ok('details' in reply.error)
      assert.ok(head['x-request-id'])
    }
    function posting(type: string, bytes: number): RequestOptions {
      return { method: 'POST', headers: { ...headers, 'content-type': type, 'content-length': bytes } }
    }
  })

  test('a taken name or slug gets 409, and the refusal names it', async () => {
    const body = { name: 'held', slug: 'held-slug', image: DEMO_IMAGE }
    await mustCall(server, 'create_sandbox', { body })
    const other = await makeOne('other')
    const takenName = await assertRefused(
      'create_sandbox',
      { body: { ...body, slug: 'free-slug' } },
      '409 name_already_exists',
    )
    assert.match(takenName, /'name' already exists/)
    const takenSlug = await assertRefused(
      'create_sandbox',
      { body: { ...body, name: 'free' } },
      '409 name_already_exists',
    )
    assert.match(takenSlug, /'slug' already exists/)
    const params = { sandbox_id: other.id }
    await assertRefused('update_sandbox', { params, body: { name: 'held' } }, '409 name_already_exists')
    await assertRefused('update_sandbox', { params, body: { slug: 'held-slug' } }, '409 name_already_exists')
    await Promise.all(['held', 'other'].map((name) => mustCall(server, 'delete_sandbox_by_name', { params: { name } })))
  })

  test('an operation that the status doesn’t allow gets 409 with the status in its details', async () => {
    const params = { name: 'states' }
    await makeOne('states')
    const text = await assertRefused('stop_sandbox_by_name', { params }, '409 invalid_state_transition')
    assert.match(text, /"created"/)
    await mustCall(server, 'start_sandbox_by_name', { params, query: { wait_for: 'running' } })
    assert.match(await assertRefused('start_sandbox_by_name', { params }, '409 invalid_state_transition'), /"running"/)
    await mustCall(server, 'delete_sandbox_by_name', { params })
  })
})

type RawAnswer = { readonly statusCode: number; readonly head: IncomingHttpHeaders; readonly body: string }

/** Sends only the head of a request. Resolves with the reply that the server sends before it reads the body. */
function answerTo(url: string, options: RequestOptions): Promise<RawAnswer> {
  return new Promise((resolve, reject) => {
    const asked = request(url, options, (response) => {
      let body = ''
      response.setEncoding('utf8').on('data', (text: string) => {
        body += text
      })
      response.once('end', () => {
        resolve({ statusCode: response.statusCode ?? 0, head: response.headers, body })
        asked.destroy()
      })
    })
    asked.once('error', reject)
    if (options.method === 'POST') asked.flushHeaders()
    else asked.end()
  })
}
