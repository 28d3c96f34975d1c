import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, before, test } from 'node:test'
import { Registry } from 'prom-client'
import { WebSocket } from 'ws'
import { changeMemberRole, removeMember, setOperator, signOutMember } from '../../../src/control/orgs/members.ts'
import { makeControlDeps } from '../../../src/control/make-deps.ts'
import { inviteMember } from '../../../src/control/sign-in/links.ts'
import { parseCidr } from '../../../src/domain/cidr.ts'
import { formatSignInToken } from '../../../src/domain/orgs/api-key.ts'
import { OPERATOR_ACTOR, type Caller } from '../../../src/domain/orgs/caller.ts'
import { callWith } from '../../../src/http/requests/call-use-case.ts'
import { makeClientAddresses } from '../../../src/http/requests/client-address.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../../../src/http/server/server.ts'
import { makeRequestLimits } from '../../../src/http/requests/request-limits.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { openDatabase } from '../../../src/store/postgres/database.ts'
import { openNotifications } from '../../../src/store/postgres/notifications.ts'
import { createExampleObjects, makeBusyWorld } from '../../support/every-operation.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { addPerson, browserOf, cookieOf, makeToken, request, SAME_ORIGIN, signIn, useLink, type Browser } from '../../support/sign-in.ts' // prettier-ignore
import { TIMEOUT_FACTOR } from '../../support/timeout-factor.ts'
import type { WorkerWorld } from '../../support/worker-world.ts'

// Members in a browser: links, cookies, sessions, and what ends them. Two server processes share the database.

/** The number of guesses of an address that the second process takes. */
const GUESSES = 40

let world: WorkerWorld
let caller: Caller
let other: Awaited<ReturnType<typeof startReplica>>
before(async () => {
  world = await makeBusyWorld()
  caller = world.control.caller
  other = await startReplica()
})
after(async () => {
  await other.close()
  await world.close()
})

/** A second server process, behind a trusted proxy and with a limit on guesses. */
async function startReplica() {
  const { deps, databaseUrl } = world.control
  const log = deps.log
  const db = await openDatabase({ connectionString: databaseUrl, tenantPoolSize: 2, systemPoolSize: 2, statementTimeoutMs: 20_000, log }) // prettier-ignore
  const notifications = await openNotifications({ connectionString: databaseUrl, clock: systemClock, log, windowMs: 5 })
  const own = makeControlDeps({ ...deps, db, notifications })
  const proxies = [parseCidr('127.0.0.1')].filter((one) => one !== null)
  const rate = { perSec: 0, burst: 0 }
  const rates = { key: rate, org: rate, failedAuthentications: { perSec: 0.001, burst: GUESSES } }
  const server = makeServer({
    call: callWith(own),
    log,
    uuids: deps.uuids,
    metrics: new Registry(),
    unreadyReasons: () => Promise.resolve([]),
    settings: DEFAULT_SERVER_SETTINGS,
    clients: makeClientAddresses(proxies),
    limits: makeRequestLimits(
      { rates, orgRequestsInFlight: 100, orgBodiesMib: 10, bodiesMib: 10, orgRepliesMib: 64 },
      systemClock,
    ),
    signIn: { oidc: null },
  })
  return {
    url: await server.listen({ host: '127.0.0.1', port: 0 }),
    async close() {
      await server.close()
      await notifications[Symbol.asyncDispose]()
      await db.close()
    },
  }
}

let people = 0
/** Signs in a new member of the first organization. */
async function newMember(role: 'owner' | 'admin' | 'member' | 'viewer' = 'member') {
  people += 1
  const email = `p${String(people)}@example.org`
  const user_id = await addPerson(world.control.deps, caller.org_id, email, role)
  return { email, user_id, browser: await signIn(world.control.deps, world.url, caller.org_id, email) }
}

const asOperator = () => ({ org_id: caller.org_id, actor: OPERATOR_ACTOR })

test('a link signs in once, of two requests at once too, and the cookie is closed to scripts and other sites', async () => {
  const { deps } = world.control
  await addPerson(deps, caller.org_id, 'once@example.org', 'member')
  const token = await makeToken(deps, caller.org_id, 'once@example.org')
  const replies = await Promise.all(
    [world.url, other.url, world.url, other.url].map((url) =>
      request(url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN }),
    ),
  )
  assert.deepEqual(
    replies.map(({ status }) => status).toSorted((a, b) => a - b),
    [200, 401, 401, 401],
  )
  const [used] = replies.filter(({ status }) => status === 200)
  assert.ok(used !== undefined)
  for (const refused of replies.filter((reply) => reply !== used)) {
    assert.equal(refused.code, 'invalid_sign_in_link')
    assert.equal(refused.headers.getSetCookie().length, 0)
  }
  assert.match(used.headers.getSetCookie().join(), /^sandyard_session=sys_\w{49}; Path=\/; Max-Age=25\d{5}; HttpOnly; SameSite=Lax$/) // prettier-ignore
  assert.equal(used.headers.get('cache-control'), 'no-store')
})

test('behind a trusted proxy with TLS the cookie is Secure and no subdomain can set it', async () => {
  const { deps } = world.control
  await addPerson(deps, caller.org_id, 'tls@example.org', 'member')
  const token = await makeToken(deps, caller.org_id, 'tls@example.org')
  const headers = { ...SAME_ORIGIN, 'x-forwarded-proto': 'https', 'x-forwarded-for': '192.0.2.1' }
  const reply = await request(other.url, 'POST', '/auth/link', { body: { token }, headers })
  assert.match(reply.headers.getSetCookie().join(), /^__Host-sandyard_session=.*; HttpOnly; SameSite=Lax; Secure$/)
  const cookie = cookieOf(reply)
  assert.equal((await request(other.url, 'GET', '/auth/session', { headers: { ...headers, cookie } })).status, 200)
  // Over https, the name that a subdomain or plain http could have set opens nothing.
  const tossed = cookie.replace('__Host-', '')
  assert.equal(
    (await request(other.url, 'GET', '/auth/session', { headers: { ...headers, cookie: tossed } })).status,
    401,
  )
  // The header of an untrusted peer counts nothing.
  assert.equal((await request(world.url, 'GET', '/auth/session', { headers: { ...headers, cookie } })).status, 401)
})

test('the session says who is signed in, and serves the API with the rights of the role', async () => {
  const { email, user_id, browser } = await newMember('member')
  const { body, headers } = await browser.send('GET', '/auth/session')
  assert.equal(headers.get('cache-control'), 'no-store')
  assert.deepEqual(body.user, { id: user_id, label: `p***@example.org`, redacted_email: 'p***@example.org' })
  assert.deepEqual([body.role, body.org.slug, body.is_operator, body.orgs.length], ['member', 'default', false, 1])
  assert.ok(!JSON.stringify(body).includes(email))
  const created = await browser.send('POST', '/v1/sandboxes', { body: { name: 'by-a-person', image: 'registry.example/box:1' } }) // prettier-ignore
  assert.equal(created.status, 200, JSON.stringify(created.body))
  const { body: events } = await browser.send('GET', `/v1/events?sandbox_id=${created.body.id}&actor=${user_id}`)
  assert.deepEqual(events.data[0].actor, { kind: 'user', user_id, label: 'p***@example.org', redacted_email: 'p***@example.org' }) // prettier-ignore
  const refused = await browser.send('POST', '/v1/api-keys', { body: { name: 'k' } })
  assert.deepEqual([refused.status, refused.code, refused.body.error.details], [403, 'forbidden', { field: 'role', seen: 'member', accepted: 'admin' }]) // prettier-ignore
})

test('a change without the CSRF token, or from a page of another origin, is refused by its header', async () => {
  const { browser } = await newMember('member')
  const body = { name: 'never', image: 'registry.example/box:1' }
  const cases: readonly (readonly [Readonly<Record<string, string | null>>, string])[] = [
    [{ 'x-sandyard-csrf': null }, 'x-sandyard-csrf'],
    [{ 'x-sandyard-csrf': 'guess' }, 'x-sandyard-csrf'],
    [{ 'sec-fetch-site': 'cross-site' }, 'sec-fetch-site'],
    [{ 'sec-fetch-site': 'same-site' }, 'sec-fetch-site'],
    [{ 'sec-fetch-site': 'none' }, 'sec-fetch-site'],
    [{ 'sec-fetch-site': null }, 'origin'],
    [{ 'sec-fetch-site': null, origin: 'https://evil.example' }, 'origin'],
    [{ 'sec-fetch-site': null, origin: 'null' }, 'origin'],
  ]
  for (const [path, method] of [
    ['/v1/sandboxes', 'POST'],
    ['/auth/org', 'POST'],
    ['/auth/sign-out', 'POST'],
  ] as const)
    // prettier-ignore
    for (const [headers, field] of cases) {
      const reply = await browser.send(method, path, { body, headers })
      assert.deepEqual([reply.status, reply.code, reply.body.error.details.field], [403, 'forbidden', field], path)
    }
  // Browsers that don't send Sec-Fetch-Site, as to plain http on a network, name the origin.
  const own = { 'sec-fetch-site': null, origin: world.url }
  assert.equal((await browser.send('POST', '/v1/sandboxes', { body, headers: own })).status, 200)
})

test('a page of another origin reads nothing with the cookie, and signs nobody in', async () => {
  const { browser } = await newMember('member')
  for (const path of ['/v1/sandboxes', '/auth/session', '/v1/nothing']) {
    for (const headers of [
      { 'sec-fetch-site': 'same-site' },
      { 'sec-fetch-site': null, origin: 'https://evil.example' },
    ])
      // prettier-ignore
      assert.equal((await browser.send('GET', path, { headers })).status, 403)
    // An address that the person typed, and a client that says nothing.
    for (const site of ['none', null])
      assert.notEqual((await browser.send('GET', path, { headers: { 'sec-fetch-site': site } })).status, 403)
  }
  const token = await makeToken(world.control.deps, caller.org_id, 'once@example.org')
  const reply = await request(world.url, 'POST', '/auth/link', { body: { token }, headers: { 'sec-fetch-site': 'cross-site' } }) // prettier-ignore
  assert.equal(reply.code, 'forbidden')
  await useLink(world.url, token) // the refused request did not use it
})

test('a request with both a key and a session is refused, and so are two cookies of one name', async () => {
  const { browser } = await newMember('member')
  const authorization = `Bearer ${await addKey(world.control.deps, caller.org_id)}`
  const both = await browser.send('GET', '/v1/sandboxes', { headers: { authorization } })
  assert.deepEqual([both.status, both.code, both.body.error.details.field], [400, 'invalid_request', 'authorization'])
  const planted = `sandyard_session=sys_planted; ${browser.cookie}`
  assert.equal((await browser.send('GET', '/v1/sandboxes', { headers: { cookie: planted } })).status, 401)
})

test('signing in makes a new session and ends the one that the browser had', async () => {
  const { email, browser } = await newMember('member')
  const token = await makeToken(world.control.deps, caller.org_id, email)
  const headers = { ...SAME_ORIGIN, cookie: browser.cookie }
  const reply = await request(world.url, 'POST', '/auth/link', { body: { token }, headers })
  assert.notEqual(cookieOf(reply), browser.cookie)
  assert.equal((await browser.send('GET', '/auth/session')).status, 401)
  const planted = { ...SAME_ORIGIN, cookie: 'sandyard_session=chosen-by-somebody' }
  const again = await makeToken(world.control.deps, caller.org_id, email)
  assert.ok(!cookieOf(await request(world.url, 'POST', '/auth/link', { body: { token: again }, headers: planted })).includes('chosen')) // prettier-ignore
})

test('sign-out, the end of a session and the removal of the member count at once, in every server process', async () => {
  const { deps } = world.control
  const isOut = async ({ cookie }: Browser) => {
    for (const url of [world.url, other.url])
      assert.equal((await request(url, 'GET', '/v1/sandboxes', { headers: { cookie } })).status, 401)
  }
  const isIn = async ({ cookie }: Browser) => {
    for (const url of [world.url, other.url])
      assert.equal((await request(url, 'GET', '/v1/sandboxes', { headers: { cookie } })).status, 200)
  }
  const { email, browser: first } = await newMember('member')
  await isIn(first)
  const out = await first.send('POST', '/auth/sign-out')
  assert.match(out.headers.getSetCookie().join(), /^sandyard_session=; .*Max-Age=0/)
  await isOut(first)

  const second = await signIn(deps, world.url, caller.org_id, email)
  const third = await signIn(deps, other.url, caller.org_id, email)
  await isIn(second)
  const { body } = await second.send('GET', '/auth/sessions')
  assert.equal(body.data.length, 2)
  const there = body.data.find(({ is_current }: { is_current: boolean }) => !is_current)
  assert.equal((await second.send('DELETE', `/auth/sessions/${there.id}`)).status, 200)
  assert.equal((await second.send('DELETE', `/auth/sessions/${there.id}`)).code, 'session_not_found')
  await isOut(third)
  await isIn(second)

  const { browser: neighbour } = await newMember('member')
  const mine = (await second.send('GET', '/auth/sessions')).body.data[0].id
  assert.equal((await neighbour.send('DELETE', `/auth/sessions/${mine}`)).code, 'session_not_found')

  await removeMember(deps, asOperator(), { email })
  await isOut(second)
  const { email: kept, browser } = await newMember('member')
  await isIn(browser)
  assert.equal(await signOutMember(deps, asOperator(), { email: kept }), 1)
  await isOut(browser)
})

test('a link of a removed member opens nothing, and the end of the membership deletes all that could', async () => {
  const { deps } = world.control
  const { email } = await newMember('member')
  const token = await makeToken(deps, caller.org_id, email)
  await removeMember(deps, asOperator(), { email })
  assert.equal((await request(world.url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN })).status, 401)
})

test('a new role counts from the next request on, and what the session has open ends', async () => {
  const { deps } = world.control
  const { email, browser } = await newMember('member')
  const stream = followEvents(browser)
  await stream.open
  await changeMemberRole(deps, asOperator(), { email, role: 'viewer' })
  await stream.ended
  const body = { name: 'refused', image: 'registry.example/box:1' }
  for (const url of [world.url, other.url])
    assert.equal((await browser.send('POST', '/v1/sandboxes', { body, url })).status, 403)
  assert.equal((await browser.send('GET', '/v1/sandboxes')).status, 200)
})

test('the command channel opens for a page of this server alone, and ends with the session', async () => {
  const { browser } = await newMember('member')
  const { running } = await createExampleObjects(world, caller)
  for (const headers of [{}, { origin: 'https://evil.example' }, { origin: world.url, 'sec-fetch-site': 'cross-site' }])
    await assert.rejects(openChannel(browser, running.id, headers), /403/)
  const channel = await openChannel(browser, running.id, { origin: world.url })
  channel.terminate()
  const stream = followEvents(browser)
  await stream.open
  await browser.send('POST', '/auth/sign-out', { url: other.url })
  await stream.ended
})

/** Less than the interval of 30 s at which sessions in use are checked without a notification. */
const AT_ONCE_MS = 5_000

/** Follows the events of the organization until the server ends the stream, which it must do at once. */
function followEvents({ cookie }: Browser) {
  const open = fetch(`${world.url}/v1/events/stream`, { headers: { cookie, ...SAME_ORIGIN } })
  const ended = open.then(async (reply) => {
    const startedMs = performance.now()
    await reply.text()
    assert.ok(performance.now() - startedMs < AT_ONCE_MS * TIMEOUT_FACTOR)
  })
  return { open, ended }
}

async function openChannel(
  { cookie }: Browser,
  sandbox: string,
  headers: Readonly<Record<string, string>>,
): Promise<WebSocket> {
  const socket = new WebSocket(`${world.url.replace('http', 'ws')}/v1/sandboxes/${sandbox}/agent`, { headers: { cookie, ...headers } }) // prettier-ignore
  await once(socket, 'open', { signal: AbortSignal.timeout(20_000) })
  return socket
}

test('a member of several organizations acts in one at a time, and sees nothing of another', async () => {
  const { deps } = world.control
  const second = await addOrg(deps, 'second')
  const third = await addOrg(deps, 'third')
  const { email, browser } = await newMember('viewer')
  await addPerson(deps, second.org_id, email, 'admin')
  const { body } = await browser.send('GET', '/auth/session')
  assert.deepEqual(body.orgs.map(({ slug, role }: { slug: string; role: string }) => [slug, role]), [['default', 'viewer'], ['second', 'admin']]) // prettier-ignore
  assert.equal((await browser.send('POST', '/auth/org', { body: { org_id: third.org_id } })).code, 'org_not_found')
  const chosen = await browser.send('POST', '/auth/org', { body: { org_id: second.org_id } })
  const there = await browserOf(world.url, cookieOf(chosen))
  const after = (await there.send('GET', '/auth/session')).body
  assert.deepEqual([after.org.slug, after.role, after.expires_at], ['second', 'admin', body.expires_at])
  // Another tab with the page of the first organization can't change the second one by mistake.
  assert.equal((await browser.send('GET', '/v1/sandboxes')).status, 401)
  assert.notEqual(there.csrf, browser.csrf)
  assert.deepEqual((await there.send('GET', '/v1/sandboxes')).body.data, [])
  assert.equal((await there.send('GET', '/v1/api-keys')).status, 200)
  const { running } = await createExampleObjects(world, caller)
  assert.equal((await there.send('GET', `/v1/sandboxes/${running.id}`)).status, 404)
})

test('the link of an invitation opens the inviting organization alone, even to a person who belongs to others', async () => {
  const { deps } = world.control
  const inviting = await addOrg(deps, 'inviting')
  const { email } = await newMember('owner')
  const { token } = await inviteMember(deps, inviting, { email, role: 'viewer' })
  const browser = await useLink(world.url, token)
  const { body } = await browser.send('GET', '/auth/session')
  assert.deepEqual([body.org.slug, body.role, body.orgs.length], ['inviting', 'viewer', 1])
  assert.equal((await browser.send('POST', '/auth/org', { body: { org_id: caller.org_id } })).code, 'org_not_found')
  const { data } = (await browser.send('GET', '/auth/sessions')).body
  assert.equal(data.length, 1, 'sessions in other organizations are hidden')
})

test('an admin manages members but no owners, an owner does, and nobody removes the last one', async () => {
  const { browser: admin } = await newMember('admin')
  const { browser: owner, user_id } = await newMember('owner')
  const invited = await admin.send('POST', '/v1/members', { body: { email: 'New@example.org', role: 'viewer' } })
  assert.equal(invited.status, 200, JSON.stringify(invited.body))
  const { member, sign_in_path, expires_at } = invited.body
  assert.equal(member.email, 'new@example.org')
  assert.equal(Math.round((Date.parse(expires_at) - Date.now()) / 3_600_000), 7 * 24)
  const newcomer = await useLink(world.url, sign_in_path.split('#token=')[1])
  assert.equal((await newcomer.send('GET', '/auth/session')).body.role, 'viewer')
  assert.equal((await admin.send('POST', '/v1/members', { body: { email: 'new@example.org' } })).code, 'member_already_exists') // prettier-ignore
  assert.equal((await admin.send('PATCH', `/v1/members/${member.id}`, { body: { role: 'member' } })).body.role, 'member') // prettier-ignore
  const { data } = (await admin.send('GET', '/v1/members?limit=100')).body
  const theOwner = data.find((one: { user_id: string }) => one.user_id === user_id)
  for (const [method, path, body] of [
    ['POST', '/v1/members', { email: 'boss@example.org', role: 'owner' }],
    ['PATCH', `/v1/members/${member.id}`, { role: 'owner' }],
    ['PATCH', `/v1/members/${theOwner.id}`, { role: 'viewer' }],
    ['DELETE', `/v1/members/${theOwner.id}`, undefined],
  ] as const) {
    const reply = await admin.send(method, path, { body })
    assert.deepEqual([reply.status, reply.code, reply.body.error.details], [403, 'forbidden', { field: 'role', seen: 'admin', accepted: 'owner' }]) // prettier-ignore
  }
  assert.equal((await owner.send('PATCH', `/v1/members/${member.id}`, { body: { role: 'owner' } })).body.role, 'owner')
  assert.equal((await owner.send('DELETE', `/v1/members/${member.id}`)).status, 200)
  assert.equal((await newcomer.send('GET', '/auth/session')).code, 'not_signed_in')
  assert.equal((await admin.send('DELETE', `/v1/members/${member.id}`)).code, 'member_not_found')
})

test('no key manages owners, so an admin can not become one by making a key', async () => {
  const { browser: admin, user_id } = await newMember('admin')
  const { body: made } = await admin.send('POST', '/v1/api-keys', { body: { name: 'all', scopes: ['admin'] } })
  const headers = { authorization: `Bearer ${made.key}` }
  const { body } = await request(world.url, 'GET', '/v1/members?limit=100', { headers })
  const [self, owner] = [
    body.data.find((one: { user_id: string }) => one.user_id === user_id),
    body.data.find((one: { role: string }) => one.role === 'owner'),
  ]
  for (const [method, path, sent] of [
    ['PATCH', `/v1/members/${self.id}`, { role: 'owner' }],
    ['PATCH', `/v1/members/${owner.id}`, { role: 'viewer' }],
    ['DELETE', `/v1/members/${owner.id}`, undefined],
    ['POST', '/v1/members', { email: 'mine@example.org', role: 'owner' }],
  ] as const) {
    const reply = await request(world.url, method, path, { headers, body: sent })
    assert.deepEqual([reply.status, reply.code], [403, 'forbidden'], path)
  }
  const invited = { email: 'by-key@example.org', role: 'viewer' }
  assert.equal((await request(world.url, 'POST', '/v1/members', { headers, body: invited })).status, 200)
})

test('an operator is a member of the first organization with the flag, while acting in it', async () => {
  const { deps } = world.control
  const { email, browser } = await newMember('viewer')
  const read = (one: Browser) => one.send('GET', '/v1/installation/metrics')
  const refused = await read(browser)
  assert.deepEqual([refused.status, refused.body.error.details], [403, { field: 'role', seen: 'viewer', accepted: 'operator' }]) // prettier-ignore
  await setOperator(deps, asOperator(), { email, isOperator: true })
  assert.equal((await read(browser)).status, 200)
  assert.equal((await browser.send('GET', '/auth/session')).body.is_operator, true)
  const elsewhere = await addOrg(deps, 'elsewhere')
  await addPerson(deps, elsewhere.org_id, email, 'owner')
  await assert.rejects(setOperator(deps, { org_id: elsewhere.org_id, actor: OPERATOR_ACTOR }, { email, isOperator: true }), { code: 'forbidden' }) // prettier-ignore
  const chosen = await browser.send('POST', '/auth/org', { body: { org_id: elsewhere.org_id } })
  assert.equal((await read(await browserOf(world.url, cookieOf(chosen)))).status, 403)
  await setOperator(deps, asOperator(), { email, isOperator: false })
  assert.equal((await read(await signIn(deps, world.url, caller.org_id, email))).status, 403)
})

test('guesses of links are limited by address, and a signed-in member goes on', async () => {
  const { browser } = await newMember('member')
  const headers = { ...SAME_ORIGIN, 'x-forwarded-for': '198.51.100.7' }
  const session = { cookie: browser.cookie, ...headers }
  assert.equal((await request(other.url, 'GET', '/auth/session', { headers: session })).status, 200)
  const statuses = []
  for (let n = 0; n < GUESSES + 3; n += 1) {
    const token = formatSignInToken(world.control.deps.random.bytes(32))
    statuses.push((await request(other.url, 'POST', '/auth/link', { body: { token }, headers })).status)
  }
  assert.deepEqual(statuses, [...Array.from({ length: GUESSES }, () => 401), 429, 429, 429])
  assert.equal((await request(other.url, 'GET', '/auth/session', { headers: session })).status, 200)
})

test('every malformed token gets the answer of an unknown one, in the form of the API', async () => {
  for (const token of ['', 'x', 'syl_', 'syl_'.padEnd(53, '0'), '💥', 'a'.repeat(2_000)]) {
    const reply = await request(world.url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN })
    assert.deepEqual([reply.status, reply.code], [401, 'invalid_sign_in_link'])
  }
  const huge = await request(world.url, 'POST', '/auth/link', { body: { token: 'a'.repeat(5_000) }, headers: SAME_ORIGIN }) // prettier-ignore
  assert.deepEqual([huge.status, huge.code], [413, 'payload_too_large'])
  assert.equal((await request(world.url, 'POST', '/auth/link', { body: {}, headers: SAME_ORIGIN })).code, 'invalid_request') // prettier-ignore
  const nobody = await request(world.url, 'GET', '/auth/session', { headers: SAME_ORIGIN })
  assert.deepEqual([nobody.status, nobody.code, nobody.headers.get('cache-control')], [401, 'not_signed_in', 'no-store']) // prettier-ignore
})
