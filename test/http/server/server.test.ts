import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { OPERATIONS, type OperationId } from '../../../src/contract/operations.ts'
import { Problem } from '../../../src/domain/problem.ts'
import { isUuid } from '../../../src/lib/uuid.ts'
import { understoodBodies } from '../../support/captured-outcomes.ts'
import { assertReplyMatchesContract, operationIds } from '../../support/contract.ts'
import { asCaller, makeHttpWorld, SANDBOX_ID, theSandbox, type WorldOptions } from '../../support/http-world.ts'

type Ask = { readonly method?: 'GET' | 'POST' | 'PATCH' | 'DELETE' | 'PUT' | 'OPTIONS' | 'HEAD'; readonly url: string; readonly body?: unknown; readonly headers?: Record<string, string> } // prettier-ignore

const plainWorld = makeHttpWorld()
after(() => plainWorld.close())

async function ask(request: Ask, options?: WorldOptions) {
  const app = options === undefined ? plainWorld : makeHttpWorld(options)
  const { method = 'GET', url, body, headers = asCaller } = request
  const isText = typeof body === 'string' || Buffer.isBuffer(body)
  const json = body === undefined ? {} : { 'content-type': 'application/json' }
  const reply = await app.inject({
    method,
    url,
    headers: { ...json, ...headers },
    ...(body === undefined ? {} : { payload: isText ? body : JSON.stringify(body) }),
  })
  if (app !== plainWorld) await app.close()
  return {
    status: reply.statusCode,
    headers: reply.headers,
    text: reply.body,
    json: () => Object(JSON.parse(reply.body)),
  }
}

/** Sends a request and asserts that it is refused with a status and code. Resolves with the error. */
async function refusal(operation: OperationId, request: Ask, [status, code]: readonly [number, string]) {
  const reply = await ask(request)
  assert.deepEqual([reply.status, reply.json().error?.code], [status, code], reply.text)
  assertReplyMatchesContract(operation, reply.status, reply.json())
  return reply.json().error
}

const BY_ID = `/v1/sandboxes/${SANDBOX_ID}`
const IMAGE = { image: 'registry.example/box:1' }

test('every operation that needs a key answers 401, and nothing else, without a key, with a wrong one, and with a malformed one', async () => {
  const wrong: Record<string, string>[] = [
    {},
    { authorization: 'Bearer nobody' },
    { authorization: 'Basic eDp5' },
    { authorization: 'Bearer ' },
  ]
  for (const id of operationIds.filter((one) => OPERATIONS[one].access !== 'none')) {
    const operation = OPERATIONS[id]
    const url = operation.path.replace(/\{\w+\}/, 'not-a-uuid')
    for (const headers of wrong) {
      const reply = await ask({
        method: operation.method,
        url,
        headers,
        ...(operation.method === 'GET' ? {} : { body: '{broken' }),
      })
      assert.equal(reply.status, 401, `${id} ${JSON.stringify(headers)}`)
      assert.deepEqual(reply.json(), { error: { code: 'invalid_api_key', message: 'unauthorized', details: null } })
      assertReplyMatchesContract(id, 401, reply.json())
    }
  }
})

test('a recorded create body of the public clients that the schema allows is accepted', async () => {
  for (const { name, body } of understoodBodies()) {
    if (name.includes('snapshot')) continue // no snapshot is in this world; test/e2e/snapshots.test.ts restores one
    const reply = await ask({ method: 'POST', url: '/v1/sandboxes?start=true&wait_for=running&wait_timeout=90', body })
    assert.equal(reply.status, 200, `${name}: ${reply.text}`)
    assertReplyMatchesContract('create_sandbox', reply.status, reply.json())
  }
})

test('an unknown field is refused with its path, at any depth', async () => {
  const cases: readonly (readonly [unknown, string])[] = [
    [{ ...IMAGE, imag: 1 }, 'imag'],
    [{ ...IMAGE, network: { enabled: true, proxy: 1 } }, 'network.proxy'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: { domian: 'a' }, action: 'allow' }] } } }, 'network.policy.rules[0].destination.domian'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/a', host: '/b' }] }, 'mounts[0].host'],
    [{ ...IMAGE, patches: [{ type: 'remove', path: '/a', mode: 1 }] }, 'patches[0].mode'],
    [{ ...IMAGE, init: { cmd: 'auto', x: 1 } }, 'init.x'],
  ] // prettier-ignore
  for (const [body, field] of cases) {
    const { details, message } = await refusal('create_sandbox', { method: 'POST', url: '/v1/sandboxes', body }, [
      400,
      'invalid_request',
    ])
    assert.equal(details.field, field)
    assert.equal(details.seen, 'an unknown field')
    assert.ok(message.startsWith(`invalid request: ${field} `), message)
  }
})

test('an unknown field that asks for nothing is accepted at any depth, and one with a value is refused', async () => {
  const bodies = (value: unknown): readonly (readonly [unknown, string])[] => [
    [{ ...IMAGE, next: value }, 'next'],
    [{ ...IMAGE, image: { type: 'oci', reference: 'a', next: value } }, 'image.next'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: 'any', action: 'allow', next: value }] } } }, 'network.policy.rules[0].next'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/a', options: { next: value } }] }, 'mounts[0].options.next'],
    [{ ...IMAGE, patches: [{ type: 'remove', path: '/a', next: value }] }, 'patches[0].next'],
  ] // prettier-ignore
  for (const value of [null, false, '', [], {}])
    for (const [body, field] of bodies(value)) {
      const reply = await ask({ method: 'POST', url: '/v1/sandboxes', body })
      assert.equal(reply.status, 200, `${field}: ${reply.text}`)
    }
  for (const value of [0, true, 'x', [null], { x: null }])
    for (const [body, field] of bodies(value)) {
      const asking = { method: 'POST', url: '/v1/sandboxes', body } as const
      const { details } = await refusal('create_sandbox', asking, [400, 'invalid_request'])
      assert.deepEqual([details.field, details.seen], [field, 'an unknown field'])
      assert.match(String(details.accepted), /^only /)
    }
})

test('a misspelt field or one of too many is refused even if it asks for nothing', async () => {
  const misspelt = [
    [{ ...IMAGE, network: { enabeld: false } }, 'network.enabeld'],
    [
      { ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/a', options: { readOnly: false } }] },
      'mounts[0].options.readOnly',
    ],
    [{ ...IMAGE, labls: {} }, 'labls'],
    [
      { ...IMAGE, ...Object.fromEntries(Array.from({ length: 17 }, (_, at) => [`later_${String(at)}`, null])) },
      'later_16',
    ],
  ] as const
  for (const [body, field] of misspelt) {
    const asking = { method: 'POST', url: '/v1/sandboxes', body } as const
    const { details } = await refusal('create_sandbox', asking, [400, 'invalid_request'])
    assert.deepEqual([details.field, details.seen], [field, 'an unknown field'])
  }
})

test('an invalid value is refused with its path, the value, and what would be accepted', async () => {
  const cases: readonly (readonly [unknown, string, string, string])[] = [
    [{ ...IMAGE, resources: { vcpus: '2' } }, 'resources.vcpus', '"2"', 'a whole number'],
    [{ ...IMAGE, resources: { vcpus: -1 } }, 'resources.vcpus', '-1', 'at least 0'],
    [{ ...IMAGE, resources: { memory_mib: 3e9 } }, 'resources.memory_mib', '3000000000', 'at most 2147483647'],
    [{ ...IMAGE, env: null }, 'env', 'null', 'a list'],
    [{ ...IMAGE, init: 5 }, 'init', '5', 'an object or null'],
    [{ ...IMAGE, image: 5 }, 'image', '5', 'an object or a string'],
    [{ ...IMAGE, image: { type: 'disk', reference: 'x' } }, 'image.type', '"disk"', 'one of oci, Oci'],
    [{ ...IMAGE, mounts: [{ type: 'nfs', guest: '/a' }] }, 'mounts[0].type', '"nfs"', 'one of bind, Bind, named, Named, tmpfs, Tmpfs, disk_image, DiskImage'],
    [{ ...IMAGE, mounts: [{ type: 'named', guest: '/a' }] }, 'mounts[0].name', 'nothing', 'a string'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: 'all', action: 'allow' }] } } }, 'network.policy.rules[0].destination', '"all"', 'an object or one of any, Any'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: 'any', action: 'allow', ports: [{ start: 1, end: 65_536 }] }] } } }, 'network.policy.rules[0].ports[0].end', '65536', 'at most 65535'],
    [{ ...IMAGE, patches: [{ type: 'file', path: '/a', content: [256] }] }, 'patches[0].content[0]', '256', 'at most 255'],
    [{ ...IMAGE, patches: [{ type: 'mkdir', path: '/a', mode: 0o10000 }] }, 'patches[0].mode', '4096', 'at most 4095'],
    [[], 'body', 'a list of 0', 'an object'],
  ] // prettier-ignore
  for (const [body, field, seen, accepted] of cases) {
    const { details } = await refusal('create_sandbox', { method: 'POST', url: '/v1/sandboxes', body }, [
      400,
      'invalid_request',
    ])
    assert.deepEqual(details, { field, seen, accepted })
  }
})

test('no refusal repeats a value that may be a secret', async () => {
  const bodies = [
    { ...IMAGE, registry: { mode: 'inline', username: 'u', password: 77_777_777 } },
    { ...IMAGE, registry: { mode: 's3cr3t' } },
    { ...IMAGE, registry: 's3cr3t' },
    { ...IMAGE, network: { secrets: { entries: ['s3cr3t'] } } },
    { ...IMAGE, network: { secrets: { entries: [{ env_var: 'A', placeholder: 'B', value: 77_777_777 }] } } },
    { ...IMAGE, env: [{ key: 'A', value: 77_777_777 }] },
    { ...IMAGE, runtime: { scripts: { a: 77_777_777 } } },
    `{"registry":{"password":"s3cr3t",}}`,
    `{"registry":{"password":"s3cr3t"`,
  ]
  for (const body of bodies) {
    const reply = await ask({ method: 'POST', url: '/v1/sandboxes', body })
    assert.equal(reply.status, 400, reply.text)
    assert.ok(!/s3cr3t|77777777/.test(reply.text), reply.text)
  }
})

test('input that JSON.parse or PostgreSQL would change or reject is refused: double keys, __proto__, deep nesting, NUL, lone surrogates, bad UTF-8', async () => {
  const cases: readonly (readonly [string | Buffer, string])[] = [
    ['{"image":"a","image":"b"}', 'image'],
    ['{"image":"a","im\\u0061ge":"b"}', 'image'],
    ['{"image":"a","labels":{"__proto__":"b"}}', '__proto__'],
    [`{"image":${'['.repeat(40)}${']'.repeat(40)}}`, 'body'],
    ['{"image":"a","env":[{"key":"A","value":"\\u0000"}]}', 'env[0].value'],
    ['{"image":"a","labels":{"a":"\\ud800"}}', 'labels.a'],
    [Buffer.from([0x7b, 0xff, 0x7d]), 'body'],
    ['{"image":', 'body'],
    ['', 'body'],
  ]
  for (const [body, field] of cases) {
    const { details } = await refusal('create_sandbox', { method: 'POST', url: '/v1/sandboxes', body }, [
      400,
      'invalid_request',
    ])
    assert.equal(details.field, field)
  }
  const text = '{"image":"a","env":[{"key":"image","value":"\\"image\\":"},{"key":"b","value":"\\\\"}]}'
  assert.equal((await ask({ method: 'POST', url: '/v1/sandboxes', body: text })).status, 200)
})

test('a long list of bytes is accepted where bytes are asked for, and refused elsewhere or with anything else in it', async () => {
  const content = Array.from({ length: 200_000 }, (_, n) => n % 256)
  const patched = (bytes: readonly number[]) => ({ ...IMAGE, patches: [{ type: 'file', path: '/a', content: bytes }] })
  const create = (body: unknown) => ({ method: 'POST', url: '/v1/sandboxes', body }) as const
  assert.equal((await ask(create(patched(content)))).status, 200)
  for (const [body, field] of [
    [patched([...content, 256]), 'patches[0].content'],
    [{ ...IMAGE, resources: content }, 'resources.a list of bytes'],
    [{ ...IMAGE, labels: content }, 'labels.a list of bytes'],
    [{ ...IMAGE, env: content }, 'env'],
    [{ ...IMAGE, later: content }, 'later'],
    [content, 'a list of bytes'],
  ] as const) {
    const { details } = await refusal('create_sandbox', create(body), [400, 'invalid_request'])
    assert.equal(details.field, field)
  }
})

test('the keys of a request are those that it has, whatever an earlier request had in their place', async () => {
  const create = (labels: string) =>
    ({ method: 'POST', url: '/v1/sandboxes', body: `{"image":"a","labels":${labels}}` }) as const
  assert.equal((await ask(create('{"team":"a","caf\\\\":"x"}'))).status, 200) // a key that ends with a backslash
  const { details } = await refusal('create_sandbox', create('{"team":"b","caf\\u00e9":7}'), [400, 'invalid_request'])
  assert.equal(details.field, 'labels.café')
})

test('query parameters are taken literally: unknown, doubled, malformed and out-of-range ones are refused', async () => {
  const cases: readonly (readonly [OperationId, string, string])[] = [
    ['list_sandboxes', 'page=1', 'query.page'],
    ['list_sandboxes', 'limit=0', 'query.limit'],
    ['list_sandboxes', 'limit=101', 'query.limit'],
    ['list_sandboxes', 'limit=', 'query.limit'],
    ['list_sandboxes', 'limit=1e1', 'query.limit'],
    ['list_sandboxes', 'limit=1&limit=2', 'query.limit'],
    ['list_sandboxes', 'labels=team', 'query.labels'],
    ['list_sandboxes', 'labels=%7B%22a%22:1%7D', 'query.labels.a'],
    ['list_sandboxes', 'labels=%zz', 'query'],
    ['list_sandboxes', 'cursor=%00', 'query.cursor'],
    ['list_events', 'since=yesterday', 'query.since'],
    ['list_events', 'since=2026-02-30T00:00:00Z', 'query.since'],
    ['list_events', 'until=2026-01-01T00:00:00', 'query.until'],
    ['list_events', 'until=0000-01-01T00:00:00Z', 'query.until'],
    ['list_events', 'event_type=sandbox_stoped', 'query.event_type'],
    ['stream_events', 'event_type=sandbox_stoped', 'query.event_type'],
  ]
  for (const [id, query, field] of cases) {
    const { details } = await refusal(id, { url: `${OPERATIONS[id].path}?${query}` }, [400, 'invalid_request'])
    assert.equal(details.field, field, query)
  }
  for (const query of ['?limit=100', '?labels=%7B%22a%22%3A%22b%22%7D', '?', '?limit=1&'])
    assert.equal((await ask({ url: `/v1/sandboxes${query}` })).status, 200)
  assert.equal((await ask({ url: '/v1/events?since=2026-01-01T00:00:00%2B02:00' })).status, 200)
})

test('a wait for a status that no sandbox has is refused with the statuses', async () => {
  for (const wanted of ['ready', 'running,ready', 'x'.repeat(201)]) {
    const { details } = await refusal('wait_for_sandbox', { url: `${BY_ID}/wait?for=${wanted}` }, [
      400,
      'invalid_request',
    ])
    assert.equal(details.field, 'query.for')
    assert.match(
      String(details.accepted),
      wanted.length > 200 ? /at most 200 characters/ : /created\|starting\|running/,
    )
  }
})

test('wait_timeout needs wait_for=running, is 30 s by default, and is at most 300 s', async () => {
  const cases: readonly (readonly [OperationId, string, string])[] = [
    ['start_sandbox', 'wait_timeout=5', 'query.wait_timeout'],
    ['start_sandbox', 'wait_for=stopped', 'query.wait_for'],
    ['start_sandbox', 'wait_for=running&wait_timeout=301', 'query.wait_timeout'],
    ['start_sandbox', 'wait_for=running&wait_timeout=-1', 'query.wait_timeout'],
    ['create_sandbox', 'start=yes', 'query.start'],
    ['create_sandbox', 'wait_for=running', 'query.wait_for'],
  ]
  for (const [id, query, field] of cases) {
    const url = `${OPERATIONS[id].path.replace('{sandbox_id}', SANDBOX_ID)}?${query}`
    const { details } = await refusal(id, { method: 'POST', url, body: id === 'create_sandbox' ? IMAGE : {} }, [
      400,
      'invalid_request',
    ])
    assert.equal(details.field, field, query)
  }
  const waits: (number | null)[] = []
  const useCases = {
    startSandbox: (_caller: unknown, _ref: unknown, { waitMs }: { readonly waitMs: number | null }) => {
      waits.push(waitMs)
      return Promise.resolve(theSandbox)
    },
  }
  for (const query of [
    '',
    '?wait_for=running',
    '?wait_for=running&wait_timeout=0',
    '?wait_for=running&wait_timeout=300',
  ]) {
    assert.equal((await ask({ method: 'POST', url: `${BY_ID}/start${query}` }, { useCases })).status, 200)
  }
  assert.deepEqual(waits, [null, 30_000, 0, 300_000])
})

test('paths: a malformed UUID is 400, a missing sandbox 404, and names arrive decoded', async () => {
  await refusal('get_sandbox', { url: '/v1/sandboxes/1' }, [400, 'invalid_request'])
  await refusal('get_sandbox', { url: '/v1/sandboxes/by-name' }, [400, 'invalid_request'])
  await refusal('get_sandbox', { url: `/v1/sandboxes/${SANDBOX_ID.replace('0', '1')}` }, [404, 'sandbox_not_found'])
  await refusal('get_sandbox_by_name', { url: '/v1/sandboxes/by-name/other' }, [404, 'sandbox_not_found'])
  await refusal('get_sandbox_by_name', { url: '/v1/sandboxes/by-name/a%00b' }, [404, 'sandbox_not_found'])
  await refusal('get_sandbox_by_name', { url: `/v1/sandboxes/by-name/${'%C3%BC'.repeat(65)}` }, [
    404,
    'sandbox_not_found',
  ])
  assert.equal((await ask({ url: '/v1/sandboxes/by-name/%zz' })).status, 400)
  assert.equal((await ask({ url: BY_ID.toUpperCase().replace('/V1/SANDBOXES', '/v1/sandboxes') })).status, 200)
  for (const name of ['a b/ü', '%', '%2F', 'a?b#c;d', 'start', '日本', 'ü'.repeat(64)]) {
    const seen: unknown[] = []
    const useCases = {
      getSandbox: (_caller: unknown, ref: object) => {
        seen.push(ref)
        return Promise.resolve(theSandbox)
      },
    }
    const url = `/v1/sandboxes/by-name/${encodeURIComponent(name)}`
    assert.equal((await ask({ url }, { useCases })).status, 200, name)
    assert.deepEqual(seen, [{ name }])
  }
})

test('a route without a body takes none, an empty one and {}, and refuses anything else', async () => {
  const stop = { method: 'POST', url: `${BY_ID}/stop` } as const
  assert.equal((await ask(stop)).status, 200)
  assert.equal((await ask({ ...stop, body: '' })).status, 200)
  assert.equal((await ask({ ...stop, body: {} })).status, 200)
  assert.equal((await ask({ method: 'DELETE', url: BY_ID, body: {} })).status, 200)
  const { details } = await refusal('stop_sandbox', { ...stop, body: { force: true } }, [400, 'invalid_request'])
  assert.deepEqual(details, { field: 'force', seen: 'an unknown field', accepted: 'no fields' })
})

test('a rename checks the new name and slug, and a field that is absent or null stays unchanged', async () => {
  for (const body of [{ slug: 'Ä' }, { slug: 'a--b' }, { name: '' }, { name: 'x'.repeat(129) }]) {
    await refusal('update_sandbox', { method: 'PATCH', url: BY_ID, body }, [400, 'invalid_request'])
  }
  const reply = await ask({ method: 'PATCH', url: '/v1/sandboxes/by-name/demo', body: { name: 'new', slug: null } })
  assert.deepEqual([reply.json().name, reply.json().slug], ['new', theSandbox.slug])
})

test('bodies of another type, charset or encoding are 415, and bodies above the limit 413', async () => {
  const url = '/v1/sandboxes'
  for (const type of [
    'text/plain',
    'application/x-www-form-urlencoded',
    'application/json; charset=utf-16',
    'nonsense',
  ]) {
    await refusal(
      'create_sandbox',
      { method: 'POST', url, body: JSON.stringify(IMAGE), headers: { ...asCaller, 'content-type': type } },
      [415, 'unsupported_media_type'],
    )
  }
  const zipped = { ...asCaller, 'content-type': 'application/json', 'content-encoding': 'gzip' }
  await refusal('create_sandbox', { method: 'POST', url, body: 'x', headers: zipped }, [415, 'unsupported_media_type'])
  const large = { ...IMAGE, labels: { a: 'x'.repeat(4 * 1024 * 1024) } }
  await refusal('create_sandbox', { method: 'POST', url, body: large }, [413, 'payload_too_large'])
})

test('an unknown path is 404 and a wrong method 405 with Allow; below /v1, callers without a key get 401 instead', async () => {
  const unknown = await ask({ url: '/v1/nothing' })
  assert.deepEqual([unknown.status, unknown.json().error.code], [404, 'not_found'])
  const wrong = await ask({ method: 'POST', url: BY_ID })
  assert.deepEqual([wrong.status, wrong.json().error.code], [405, 'method_not_allowed'])
  assert.equal(wrong.headers['allow'], 'DELETE, GET, HEAD, PATCH, PUT')
  const options = await ask({ method: 'OPTIONS', url: '/v1/sandboxes' })
  assert.deepEqual([options.status, options.headers['allow']], [204, 'GET, HEAD, POST'])
  assert.equal((await ask({ url: '/v1/nothing', headers: {} })).status, 401)
  assert.equal((await ask({ url: '/nothing', headers: {} })).status, 404)
  assert.equal((await ask({ method: 'HEAD', url: BY_ID })).status, 200)
  assert.equal((await ask({ url: `${BY_ID}/agent` })).status, 400)
})

test('a refusal of a use case is sent with its code, details and Retry-After; a bug is sent as 500 with only the request id', async () => {
  const limited = {
    useCases: {
      getSandbox: () => Promise.reject(new Problem('rate_limited', { retryAfterSeconds: 7, details: { max: 1 } })),
    },
  }
  const reply = await ask({ url: BY_ID }, limited)
  assert.deepEqual([reply.status, reply.headers['retry-after'], reply.json().error.details], [429, '7', { max: 1 }])
  const broken = await ask(
    { url: BY_ID },
    { useCases: { getSandbox: () => Promise.reject(new Error('password=hunter2')) } },
  )
  const error = broken.json().error
  assert.deepEqual([broken.status, error.code, error.message], [500, 'internal_error', 'internal error'])
  assert.deepEqual(error.details, { request_id: broken.headers['x-request-id'] })
  assertReplyMatchesContract('get_sandbox', 500, broken.json())
})

test('the server generates the request id and ignores an incoming one', async () => {
  const reply = await ask({ url: BY_ID, headers: { ...asCaller, 'x-request-id': 'mine' } })
  assert.ok(isUuid(String(reply.headers['x-request-id'])))
})

test('readiness gives the reasons, and metrics count requests by operation and status', async () => {
  const waiting = await ask(
    { url: '/readyz', headers: {} },
    { server: { unreadyReasons: () => Promise.resolve(['the database is away']) } },
  )
  assert.deepEqual([waiting.status, waiting.json().error.details], [503, { reasons: ['the database is away'] }])
  assertReplyMatchesContract('get_readiness', 503, waiting.json())
  const app = makeHttpWorld()
  await app.inject({ url: BY_ID, headers: asCaller })
  const metrics = await app.inject({ url: '/metrics' })
  await app.close()
  assert.match(metrics.body, /sandyard_http_request_duration_seconds_count\{operation="get_sandbox",status="200"\} 1/)
})
