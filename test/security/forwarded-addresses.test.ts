import assert from 'node:assert/strict'
import { request } from 'node:http'
import type { TestContext } from 'node:test'
import { cidr } from '../../src/domain/cidr.ts'
import { asId, type ApiKeyId } from '../../src/domain/ids.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import { makeClientAddresses } from '../../src/http/requests/client-address.ts'
import { makeRequestLimits } from '../../src/http/requests/request-limits.ts'
import { DEFAULT_SERVER_SETTINGS } from '../../src/http/server/server.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { asCaller, KEY, makeHttpWorld, SANDBOX_ID, theSandbox } from '../support/http-world.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'

const FACTS = { target: 'control-plane', attacker: 'a client that forges X-Forwarded-For', finding: 13 } as const
const PROXY = '127.0.0.9'
const BURST = 5

const api_key_id = asId<ApiKeyId>(SANDBOX_ID)
const CALLER: Caller = {
  org_id: theSandbox.org_id,
  api_key_id,
  role: 'owner',
  scope: 'admin',
  actor: { kind: 'api_key', api_key_id, name: 'first' },
}

/** A server that trusts one proxy, and allows each address `BURST` failed authentications and 2 connections. */
async function listen(t: TestContext) {
  const unlimited = { perSec: 0, burst: 1 }
  const rates = { key: unlimited, org: unlimited, failedAuthentications: { perSec: 0.001, burst: BURST } }
  const limits = makeRequestLimits(
    { rates, orgRequestsInFlight: 100, orgBodiesMib: 64, bodiesMib: 64, orgRepliesMib: 64 },
    systemClock,
  )
  const connections = { ...DEFAULT_SERVER_SETTINGS.connections, perAddress: 2 }
  const app = makeHttpWorld({
    useCases: {
      authenticate: (key, onUnknown) => {
        if (key === KEY) return Promise.resolve(CALLER)
        onUnknown?.()
        return Promise.resolve(null)
      },
      getOrg: () => new Promise(() => undefined), // a request that stays in progress
    },
    server: {
      limits,
      clients: makeClientAddresses([cidr(PROXY)]),
      settings: { ...DEFAULT_SERVER_SETTINGS, connections },
    },
  })
  t.after(() => app.close())
  const port = Number(new URL(await app.listen({ host: '127.0.0.1', port: 0 })).port)
  type Sent = { readonly path?: string; readonly headers?: Readonly<Record<string, string>> }
  const open = (localAddress: string, { path = '/v1/sandboxes', headers = {} }: Sent) => {
    const sent = request({ host: '127.0.0.1', port, localAddress, path, headers, agent: false })
    const status = new Promise<number>((resolve, reject) => {
      sent.on('error', reject).on('response', (response) => {
        response.resume()
        resolve(response.statusCode ?? 0)
      })
    })
    sent.end()
    return { status, abandon: () => sent.destroy() }
  }
  const send = (localAddress: string, forwarded: string, headers: Readonly<Record<string, string>> = {}) =>
    open(localAddress, { headers: { ...headers, 'x-forwarded-for': forwarded } }).status
  return { open, send }
}

const guess = { authorization: 'Bearer guess' }

attack('guesses keys under ever new forged addresses', FACTS, async (t) => {
  const { send } = await listen(t)
  const statuses: number[] = []
  for (let n = 1; n <= 20; n += 1) statuses.push(await send('127.0.0.2', `192.0.2.${String(n)}`, guess))
  assert.deepEqual(
    statuses,
    statuses.map((_, at) => (at < BURST ? 401 : 429)),
  )
  // Behind the trusted proxy, the forged part of the header is to the left of the address that the proxy appended.
  const proxied: number[] = []
  for (let n = 1; n <= 20; n += 1) proxied.push(await send(PROXY, `192.0.2.${String(n)}, 198.51.100.1`, guess))
  assert.deepEqual(proxied, statuses)
  assert.equal(await send(PROXY, '198.51.100.2', guess), 401)
  return { tries: 40, outcome: `each way, ${String(BURST)} guesses were judged and 15 refused unread with 429` }
})

attack('uses up the failed authentications of a victim by forging its address', FACTS, async (t) => {
  const { send } = await listen(t)
  const victim = '198.51.100.7'
  for (let n = 0; n < 2 * BURST; n += 1) {
    await send('127.0.0.3', victim, guess)
    await send(PROXY, `${victim}, 203.0.113.5`, guess)
  }
  assert.equal(await send(PROXY, victim, guess), 401)
  return { tries: 4 * BURST, outcome: 'the victim behind the proxy was still answered 401, not 429' }
})

attack('opens more connections than an address may by going through the proxy', FACTS, async (t) => {
  const { open, send } = await listen(t)
  const client = { path: '/v1/me/org', headers: { ...asCaller, 'x-forwarded-for': '198.51.100.9' } }
  const held = [open(PROXY, client), open(PROXY, client)]
  for (const { status } of held) status.catch(() => null)
  const refused = await waitUntil(async () => ((await send(PROXY, '198.51.100.9', guess)) === 429 ? 429 : undefined))
  const others = [await send(PROXY, '198.51.100.10', asCaller), await send(PROXY, '198.51.100.11', asCaller)]
  assert.deepEqual([refused, ...others], [429, 200, 200])
  for (const { abandon } of held) abandon()
  await waitUntil(async () => (await send(PROXY, '198.51.100.9', asCaller)) === 200)
  return { tries: 3, outcome: 'its third request was answered 429, and other clients of the proxy were served' }
})
