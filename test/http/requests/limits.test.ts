import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import type { FastifyPluginAsync } from 'fastify'
import { WORKER_PROTOCOL_VERSION } from '../../../src/contract/workers/worker-protocol.ts'
import type { AuthenticationRateLimiter } from '../../../src/control/requests/request-rate-limiter.ts'
import { makeJoinRoute } from '../../../src/http/workers/join-route.ts'
import { makeSyncRoute } from '../../../src/http/workers/worker-routes.ts'
import { createApiKey } from '../../../src/control/orgs/api-keys.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import { getOrg } from '../../../src/control/orgs/orgs.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import { asId, type ApiKeyId, type OrgId } from '../../../src/domain/ids.ts'
import { PEERS_ARE_CLIENTS } from '../../../src/http/requests/client-address.ts'
import { makeRequestLimits, type RequestLimitSettings } from '../../../src/http/requests/request-limits.ts'
import { ClientDisconnected } from '../../../src/http/requests/request-signals.ts'
import { makeLog, type Log } from '../../../src/lib/log.ts'
import { renderSandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { DEFAULT_SERVER_SETTINGS, type ServerSettings } from '../../../src/http/server/server.ts'
import type { UseCases } from '../../support/use-cases.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { makeTestControl } from '../../support/control.ts'
import { makeHttpWorld, SANDBOX_ID, theSandbox } from '../../support/http-world.ts'
import { openConnection, firstReply } from '../../support/raw-http.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const NO_RATES = {
  key: { perSec: 0, burst: 1 },
  org: { perSec: 0, burst: 1 },
  failedAuthentications: { perSec: 0, burst: 1 },
}
const WIDE: RequestLimitSettings = {
  rates: NO_RATES,
  orgRequestsInFlight: 100,
  orgBodiesMib: 64,
  bodiesMib: 256,
  orgRepliesMib: 64,
}

/** The callers of three keys: two of a first organization, and one of a second. */
const CALLERS: ReadonlyMap<string, Caller> = new Map(
  [
    ['one-a', 'a', '1'],
    ['one-b', 'b', '1'],
    ['two', 'c', '2'],
  ].map(([key = '', id = '', org = '']) => {
    const api_key_id = asId<ApiKeyId>(`01890a5d-ac96-774b-bcce-b302099a800${id}`)
    const org_id = asId<OrgId>(`01890a5d-ac96-774b-bcce-b302099a801${org}`)
    return [
      key,
      { org_id, api_key_id, role: 'owner', scope: 'admin', actor: { kind: 'api_key', api_key_id, name: key } },
    ]
  }),
)

type ServerParts = {
  readonly log?: Log
  readonly plugins?: (rates: AuthenticationRateLimiter) => readonly FastifyPluginAsync[]
  readonly settings?: Partial<ServerSettings>
}

async function listen(
  t: TestContext,
  limits: Partial<RequestLimitSettings>,
  useCases: Partial<UseCases> = {},
  { plugins = () => [], settings = {}, log = makeLog('silent') }: ServerParts = {},
) {
  const clock = makeTestClock()
  const made = makeRequestLimits({ ...WIDE, ...limits }, clock)
  const app = makeHttpWorld({
    useCases: { authenticate: (key) => Promise.resolve(CALLERS.get(key) ?? null), ...useCases },
    server: {
      log,
      limits: made,
      plugins: plugins(made.rates),
      settings: { ...DEFAULT_SERVER_SETTINGS, limitRefusalDelayMs: 0, ...settings },
    },
  })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.after(() => app.close())
  const get = async (key: string, path = `/v1/sandboxes/${SANDBOX_ID}`) => {
    const reply = await fetch(`${url}${path}`, { headers: { authorization: `Bearer ${key}` } })
    const body: unknown = await reply.json()
    return {
      status: reply.status,
      headers: reply.headers,
      body,
      refusal: reply.status < 400 ? null : Object(body).error,
    }
  }
  return { app, clock, url, port: Number(new URL(url).port), get }
}

test('a key may send its burst at once and then its rate; every reply says what is left, and other keys are not affected', async (t) => {
  const { clock, get } = await listen(t, { rates: { ...NO_RATES, key: { perSec: 2, burst: 3 } } })
  const left: unknown[] = []
  for (let sent = 0; sent < 3; sent++) {
    const { status, headers } = await get('one-a')
    left.push([status, ...['limit', 'remaining', 'reset'].map((name) => headers.get(`ratelimit-${name}`))])
  }
  assert.deepEqual(left, [
    [200, '3', '2', '1'],
    [200, '3', '1', '1'],
    [200, '3', '0', '2'],
  ])
  const refused = await get('one-a')
  assert.equal(refused.status, 429)
  assertReplyMatchesContract('get_sandbox', 429, refused.body)
  assert.equal(refused.headers.get('retry-after'), '1')
  assert.equal(refused.headers.get('ratelimit-remaining'), '0')
  const { code, details } = refused.refusal
  assert.deepEqual([code, details.limit, details.max, details.current], ['rate_limited', 'key_requests_per_sec', 2, 3])
  assert.match(details.how_to_change, /SANDYARD_KEY_REQUESTS_PER_SEC/)
  assert.equal((await get('one-b')).status, 200)
  clock.advance(1_000)
  assert.deepEqual(
    [(await get('one-a')).status, (await get('one-a')).status, (await get('one-a')).status],
    [200, 200, 429],
  )
})

test('all keys of an organization share its rate, every operation is refused beyond it, and other organizations are not affected', async (t) => {
  const { get } = await listen(t, { rates: { ...NO_RATES, org: { perSec: 1, burst: 2 } } })
  assert.deepEqual([(await get('one-a')).status, (await get('one-b', '/v1/nothing')).status], [200, 404])
  const { status, refusal } = await get('one-b', '/v1/me/org')
  assert.deepEqual([status, refusal.details.limit], [429, 'org_requests_per_sec'])
  assert.equal((await get('two')).status, 200)
})

test('a check of a large specification counts as much as a create with it, and is refused before anything is read', async (t) => {
  const MIB = 1024 * 1024
  let deleted = 0
  const deleteSandbox: UseCases['deleteSandbox'] = (_caller, _ref, conditions) => {
    conditions?.beforeSpec?.(4 * MIB)
    deleted += 1
    return Promise.resolve()
  }
  const { url, clock } = await listen(
    t,
    { rates: { ...NO_RATES, key: { perSec: 10, burst: 1_100 } } },
    { deleteSandbox },
  )
  const headers = { authorization: 'Bearer one-a', 'if-match': '"x"' }
  const remove = async (): Promise<number> =>
    (await fetch(`${url}/v1/sandboxes/${SANDBOX_ID}`, { method: 'DELETE', headers })).status
  assert.deepEqual([await remove(), await remove(), await remove()], [200, 200, 429])
  clock.advance(44_000) // 512 tokens, and one for each request, of 10 a second
  assert.deepEqual([await remove(), await remove()], [200, 429])
  assert.equal(deleted, 3)
})

test('a refusal for a limit is sent late, so that who repeats it at once keeps nobody waiting, and other refusals are not', async (t) => {
  const rates = { ...NO_RATES, key: { perSec: 1, burst: 1 } }
  const { url, get } = await listen(t, { rates }, {}, { settings: { limitRefusalDelayMs: 3_600_000 } })
  assert.equal((await get('one-a')).status, 200)
  const gaveUp = new AbortController()
  const headers = { authorization: 'Bearer one-a' }
  const refused = fetch(`${url}/v1/sandboxes/${SANDBOX_ID}`, { headers, signal: gaveUp.signal })
  assert.deepEqual([(await get('one-b')).status, (await get('unknown')).status], [200, 401])
  gaveUp.abort()
  await assert.rejects(refused, { name: 'AbortError' })
})

test('without limits no reply has their headers', async (t) => {
  const { get } = await listen(t, {})
  const { status, headers } = await get('one-a')
  assert.deepEqual([status, headers.get('ratelimit-limit')], [200, null])
})

test('a large body counts as many requests', async (t) => {
  const { url, get } = await listen(t, { rates: { ...NO_RATES, key: { perSec: 1, burst: 10 } } })
  const body = JSON.stringify({ image: 'registry.example/box:1', env: [{ key: 'A', value: 'a'.repeat(50_000) }] })
  const headers = { authorization: 'Bearer one-a', 'content-type': 'application/json' }
  assert.equal((await fetch(`${url}/v1/sandboxes`, { method: 'POST', headers, body })).status, 200)
  // The create cost 1 and its body 6, and this request costs 1.
  assert.equal((await get('one-a')).headers.get('ratelimit-remaining'), '2')
})

test('a large reply counts as many requests', async (t) => {
  const large = { ...theSandbox, name: 'n'.repeat(300_000) }
  const { get } = await listen(
    t,
    { rates: { ...NO_RATES, key: { perSec: 1, burst: 10 } } },
    { getSandbox: () => Promise.resolve(large) },
  )
  assert.equal((await get('one-a')).headers.get('ratelimit-remaining'), '9')
  // The reply counted 4, and this request counts 1.
  assert.equal((await get('one-a', '/v1/me/org')).headers.get('ratelimit-remaining'), '4')
})

test('a start counts the specification of its sandbox as a body', async (t) => {
  const { url, get } = await listen(
    t,
    { rates: { ...NO_RATES, key: { perSec: 1, burst: 10 } } },
    {
      startSandbox: (_caller, _ref, { onStart }) => {
        onStart?.(50_000)
        return Promise.resolve(theSandbox)
      },
    },
  )
  const headers = { authorization: 'Bearer one-a' }
  assert.equal((await fetch(`${url}/v1/sandboxes/${SANDBOX_ID}/start`, { method: 'POST', headers })).status, 200)
  // The start cost 1 and the specification 6, and this request costs 1.
  assert.equal((await get('one-a')).headers.get('ratelimit-remaining'), '2')
})

test('an organization’s concurrent requests are limited, and a permit is free again once its reply is sent', async (t) => {
  const held = Promise.withResolvers<void>()
  const getSandbox: UseCases['getSandbox'] = async () => {
    await held.promise
    return theSandbox
  }
  const { get } = await listen(t, { orgRequestsInFlight: 2 }, { getSandbox })
  const first = [get('one-a'), get('one-b')]
  const refused = await waitUntil(async () => {
    const reply = await get('one-a', '/v1/me/org')
    return reply.status === 429 && reply
  })
  assert.deepEqual(
    [refused.refusal.code, refused.refusal.details.limit, refused.refusal.details.max],
    ['rate_limited', 'org_requests_in_flight', 2],
  )
  assert.equal((await get('two', '/v1/me/org')).status, 200)
  held.resolve()
  assert.deepEqual((await Promise.all(first)).map(({ status }) => status), [200, 200]) // prettier-ignore
  await waitUntil(async () => (await get('one-a', '/v1/me/org')).status === 200)
})

test('a client that disconnects while its key is looked up keeps no permit', async (t) => {
  const lookUp = Promise.withResolvers<void>()
  let isAsked = false
  const authenticate = async (key: string): Promise<Caller | null> => {
    if (key === 'one-a') {
      isAsked = true
      await lookUp.promise
    }
    return CALLERS.get(key) ?? null
  }
  const { get, port } = await listen(t, { orgRequestsInFlight: 1 }, { authenticate })
  const leaving = openConnection(port)
  leaving.socket.write(`GET /v1/me/org HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one-a\r\n\r\n`)
  await waitUntil(() => isAsked)
  leaving.socket.destroy()
  await get('two') // by the time of this reply, the server has noticed the disconnect
  lookUp.resolve()
  await get('two')
  assert.equal((await get('one-b')).status, 200)
})

test('the bytes of an organization’s bodies are limited, and an aborted upload frees its share', async (t) => {
  const { port, get } = await listen(t, { orgBodiesMib: 8 })
  const head = (key: string, length: string): string =>
    `POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${key}\r\ncontent-type: application/json\r\n${length}\r\n\r\n`
  const slow = [head('one-a', 'content-length: 4194304'), head('one-b', 'transfer-encoding: chunked')].map((text) => {
    const connection = openConnection(port)
    connection.socket.write(text)
    return connection
  })
  const ask = async (key: string) => {
    const connection = openConnection(port)
    connection.socket.write(`${head(key, 'content-length: 2')}{}`)
    const reply = await waitUntil(() => firstReply(connection.received()) ?? undefined)
    connection.socket.destroy()
    return reply
  }
  const refused = await waitUntil(async () => {
    const reply = await ask('one-a')
    return reply.status === 429 && reply
  })
  assert.equal(JSON.parse(refused.body).error.details.limit, 'org_body_bytes')
  assert.equal((await ask('two')).status, 400, 'the body itself is refused')
  assert.equal((await get('one-a')).status, 200, 'what has no body is served')
  for (const { socket } of slow) socket.destroy()
  await waitUntil(async () => (await ask('one-a')).status === 400)
})

/** A sandbox whose reply has exactly so many characters. */
function sandboxOf(chars: number) {
  const { length } = renderSandbox({ ...theSandbox, name: '' })
  return { ...theSandbox, name: 'n'.repeat(chars - length) }
}

/** Sends a request without reading its reply. */
function askWithoutReading(port: number, line: string): Socket {
  const { socket } = openConnection(port)
  socket.pause()
  socket.write(`${line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one-a\r\ncontent-length: 0\r\n\r\n`)
  return socket
}

test('the unread replies of an organization are limited: further large ones and lists are refused, changes end their connection, and a client that leaves frees its share', async (t) => {
  const large = sandboxOf(8 * 1024 * 1024)
  const useCases: Partial<UseCases> = {
    getSandbox: () => Promise.resolve(large),
    stopSandbox: () => Promise.resolve(large),
    getSandboxBreakdown: () =>
      Promise.resolve({ items: [Buffer.alloc(9 * 1024 * 1024, ' ')], sandboxes: [], nextCursor: null }),
    waitForSandbox: () =>
      Promise.resolve({
        start: (onEnd) => {
          const ending = setImmediate(onEnd, large)
          return () => clearImmediate(ending)
        },
      }),
    listSandboxes: async (_caller, { beforeRead }) => {
      beforeRead?.()
      return { items: [theSandbox], nextCursor: null }
    },
  }
  const { port, get } = await listen(t, { orgRepliesMib: 8 }, useCases)
  const path = `/v1/sandboxes/${SANDBOX_ID}`
  const report = '/v1/billing/usage/sandbox'
  assert.equal((await get('one-b', report)).status, 200, 'a single reply is never too large')
  const unread = askWithoutReading(port, `GET ${path}`)
  const refused = await waitUntil(async () => {
    const reply = await get('one-b', '/v1/sandboxes')
    return reply.status === 429 && reply
  })
  const { code, details } = refused.refusal
  assert.deepEqual([code, details.limit, details.max, details.current], ['rate_limited', 'org_reply_bytes', 8_388_608, 8_388_608]) // prettier-ignore
  assert.match(details.how_to_change, /SANDYARD_ORG_REPLIES_MIB/)
  for (const read of [path, `${path}/wait`, report])
    assert.equal((await get('one-b', read)).refusal.details.limit, 'org_reply_bytes', read)
  assert.equal((await get('one-b', '/v1/me/org')).status, 200, 'a small reply is sent')
  assert.equal((await get('two')).status, 200, 'and those of other organizations')
  const changing = openConnection(port)
  changing.socket.write(
    `POST ${path}/stop HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one-a\r\ncontent-length: 0\r\n\r\n`,
  )
  await waitUntil(() => changing.isClosed())
  assert.equal(changing.received(), '')
  unread.destroy()
  await waitUntil(async () => (await get('one-b')).status === 200)
})

test('a page is not read for a client that has left, and nothing is logged', async (t) => {
  const held = Promise.withResolvers<void>()
  const left = Promise.withResolvers<unknown>()
  const logged: unknown[] = []
  const log = Object.assign(makeLog('silent'), { error: (...args: unknown[]) => void logged.push(args) })
  const listSandboxes: UseCases['listSandboxes'] = async (_caller, { beforeRead }) => {
    asked.resolve()
    await held.promise
    try {
      beforeRead?.()
    } catch (error) {
      left.resolve(error)
      throw error
    }
    return { items: [theSandbox], nextCursor: null }
  }
  const asked = Promise.withResolvers<void>()
  const { port, get } = await listen(t, {}, { listSandboxes }, { log })
  const leaving = askWithoutReading(port, 'GET /v1/sandboxes')
  await asked.promise
  leaving.destroy()
  await get('two') // by the time of this reply, the server has noticed the disconnect
  held.resolve()
  assert.ok((await left.promise) instanceof ClientDisconnected)
  await get('two')
  assert.deepEqual(logged, [])
})

test('large bodies of one organization wait in one queue, even if they come with different keys', async (t) => {
  const order: OrgId[] = []
  const createSandbox: UseCases['createSandbox'] = ({ org_id }) => {
    order.push(org_id)
    return Promise.resolve(theSandbox)
  }
  const { app } = await listen(t, {}, { createSandbox })
  const payload = '{"image":"registry.example/box:1"}'.padEnd(70_000)
  const ask = async (authorization: string): Promise<void> => {
    const headers = { authorization, 'content-type': 'application/json' }
    await app.inject({ method: 'POST', url: '/v1/sandboxes', headers, payload })
  }
  const spellings = Array.from({ length: 20 }, (_, n) => `Bearer${' '.repeat(n + 1)}one-a`)
  await Promise.all([...spellings, 'Bearer two'].map(ask))
  assert.equal(order.length, 21)
  const turn = order.findIndex((org) => org === CALLERS.get('two')?.org_id)
  assert.ok(turn > 0 && turn < 5, `its turn came after ${String(turn)} others`)
})

test('an address that guesses keys is refused without a look-up after a while, and a known key from it is still served', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  let lookUps = 0
  const counted = {
    ...control.deps,
    db: { ...control.deps.db, asSystem: (fn) => ((lookUps += 1), control.deps.db.asSystem(fn)) },
  } satisfies typeof control.deps
  const useCases: Partial<UseCases> = {
    authenticate: (...args) => authenticate(counted, ...args),
    getOrg: (caller) => getOrg(counted, caller),
  }
  const made = await createApiKey(counted, control.caller, { name: 'known', scopes: ['admin'], expires_at: null })
  const rates = { ...NO_RATES, failedAuthentications: { perSec: 1, burst: 5 } }
  const { get, clock } = await listen(t, { rates }, useCases)
  assert.equal((await get(made.key, '/v1/me/org')).status, 200)
  lookUps = 0
  const statuses: number[] = []
  for (let guess = 0; guess < 50; guess++) statuses.push((await get(`guess-${String(guess)}`, '/v1/me/org')).status)
  assert.deepEqual(statuses, [...Array<number>(5).fill(401), ...Array<number>(45).fill(429)])
  assert.equal(lookUps, 5)
  await waitUntil(async () => {
    assert.equal((await get(made.key, '/v1/me/org')).status, 200)
    // A sixth look-up means that the known key was looked up again, because its cache entry is valid for only a second.
    return lookUps > 5
  })
  clock.advance(1_000)
  assert.equal((await get('another guess', '/v1/me/org')).status, 401)
})

test('an address that guesses credentials or join tokens of workers is refused after a while too', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { deps } = control
  const plugins = (rates: AuthenticationRateLimiter): readonly FastifyPluginAsync[] => [
    makeSyncRoute({
      control: deps,
      clients: PEERS_ARE_CLIENTS,
      rates,
      tickets: { openTickets: () => [] },
      replicas: { urls: [] },
    }),
    makeJoinRoute(deps, { clients: PEERS_ARE_CLIENTS, rates }),
  ]
  const rates = { ...NO_RATES, failedAuthentications: { perSec: 1, burst: 3 } }
  const { url, clock } = await listen(t, { rates }, {}, { plugins })
  const credential_sha256 = 'a'.repeat(64)
  const joining = JSON.stringify({
    protocol: WORKER_PROTOCOL_VERSION,
    token: 'syw_x',
    credential_sha256,
    name: null,
    fallback_name: 'a',
  })
  const send = async (path: string, body: string): Promise<number> => {
    const headers = { authorization: 'Bearer guess', 'content-type': 'application/json' }
    return (await fetch(`${url}/worker/v1/${path}`, { method: 'POST', headers, body })).status
  }
  const asked = [['join', joining], ['sync', '{}'], ['join', joining], ['join', joining], ['sync', '{}']] as const // prettier-ignore
  const statuses: number[] = []
  for (const [path, body] of asked) statuses.push(await send(path, body))
  assert.deepEqual(statuses, [401, 401, 401, 429, 429])
  clock.advance(1_000)
  assert.equal(await send('join', joining), 401)
})
