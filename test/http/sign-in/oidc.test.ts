import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Registry } from 'prom-client'
import { removeMember } from '../../../src/control/orgs/members.ts'
import { openPending, sealPending, type OidcProvider } from '../../../src/control/sign-in/oidc.ts'
import { OPERATOR_ACTOR } from '../../../src/domain/orgs/caller.ts'
import { callWith } from '../../../src/http/requests/call-use-case.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../../../src/http/server/server.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openOidc } from '../../../src/oidc/open-oidc.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { freePort } from '../../support/free-port.ts'
import { startOidcProvider, type TestProvider } from '../../support/oidc.ts'
import { addOrg } from '../../support/orgs.ts'
import { addPerson, browserOf, request, type JsonReply } from '../../support/sign-in.ts'

// Signing in at a real provider of OpenID Connect.

let control: TestControl
let provider: TestProvider
let url: string
let close: () => Promise<void>
before(async () => {
  control = await makeTestControl()
  const port = await freePort()
  url = `http://127.0.0.1:${String(port)}`
  provider = await startOidcProvider([`${url}/auth/oidc/callback`])
  close = await serve(port, openOidc(optionsOf(provider), { clock: systemClock, log: makeLog('silent') }))
})
after(async () => {
  await close()
  await provider.close()
  await control.close()
})

function optionsOf({ issuer, clientId, clientSecret }: TestProvider) {
  return { issuer, clientId, clientSecret, label: 'Example' }
}

async function serve(port: number, oidc: OidcProvider): Promise<() => Promise<void>> {
  const { deps } = control
  const server = makeServer({
    call: callWith(deps),
    log: makeLog('silent'),
    uuids: deps.uuids,
    metrics: new Registry(),
    unreadyReasons: () => Promise.resolve([]),
    settings: DEFAULT_SERVER_SETTINGS,
    signIn: { oidc },
  })
  await server.listen({ host: '127.0.0.1', port })
  return () => server.close()
}

/** Begins a sign-in. Resolves with the provider's address, and the cookie that the browser keeps. */
async function begin() {
  const reply = await request(url, 'GET', '/auth/oidc')
  assert.equal(reply.status, 303, JSON.stringify(reply.body))
  assert.match(reply.headers.getSetCookie().join(), /^sandyard_oidc=\S+; Path=\/; Max-Age=600; HttpOnly; SameSite=Lax$/)
  assert.equal(reply.headers.get('cache-control'), 'no-store')
  return { there: reply.headers.get('location') ?? '', cookie: reply.headers.getSetCookie()[0]?.split(';')[0] ?? '' }
}

/** Signs in with an account of the provider. Resolves with the reply to the browser that comes back. */
async function enter(login: string, accept = '*/*'): Promise<JsonReply> {
  const { there, cookie } = await begin()
  const back = await provider.logIn(there, login)
  return request('', 'GET', back, { headers: { cookie, accept } })
}

function sessionCookieOf({ headers }: JsonReply): string {
  const found = headers.getSetCookie().find((cookie) => cookie.startsWith('sandyard_session='))
  return found?.split(';')[0] ?? ''
}

let people = 0
/** Adds a member and their account at the provider. */
async function newPerson(): Promise<{ readonly login: string; readonly email: string }> {
  people += 1
  const [login, email] = [`subject-${String(people)}`, `o${String(people)}@example.org`]
  await addPerson(control.deps, control.caller.org_id, email, 'member')
  provider.accounts.set(login, { email, email_verified: true })
  return { login, email }
}

const remove = (email: string) =>
  removeMember(control.deps, { org_id: control.caller.org_id, actor: OPERATOR_ACTOR }, { email })

test('a member signs in at the provider, which knows the client by PKCE, state and nonce', async () => {
  const { login } = await newPerson()
  const options = await request(url, 'GET', '/auth/options')
  assert.deepEqual(options.body, { oidc: { label: 'Example' } })
  const { there } = await begin()
  const asked = new URL(there).searchParams
  assert.deepEqual([asked.get('response_type'), asked.get('code_challenge_method'), asked.get('scope')], ['code', 'S256', 'openid email']) // prettier-ignore
  for (const name of ['state', 'nonce', 'code_challenge']) assert.ok((asked.get(name) ?? '').length >= 43, name)
  const reply = await enter(login)
  assert.deepEqual([reply.status, reply.headers.get('location')], [303, '/'])
  const browser = await browserOf(url, sessionCookieOf(reply))
  assert.equal((await browser.send('GET', '/v1/sandboxes')).status, 200)
  const { body } = await browser.send('GET', '/auth/sessions')
  assert.equal(body.data[0].signed_in_by, 'oidc')
})

test('from the first time on, the provider’s own id says who a member is, and the e-mail address no longer does', async () => {
  const { login, email } = await newPerson()
  assert.equal((await enter(login)).status, 303)
  provider.accounts.set(login, { email: 'renamed@example.org', email_verified: false })
  assert.notEqual(sessionCookieOf(await enter(login)), '')
  // The provider gave the address to another person.
  provider.accounts.set('successor', { email, email_verified: true })
  const reply = await enter('successor')
  assert.deepEqual([reply.status, reply.code, sessionCookieOf(reply)], [403, 'oidc_other_identity', ''])
  // Once the member was removed and invited again, it is another person's to take.
  await remove(email)
  await addPerson(control.deps, control.caller.org_id, email, 'viewer')
  assert.notEqual(sessionCookieOf(await enter('successor')), '')
})

test('an unverified address, and a person who is no member, are refused and leave nothing', async () => {
  const { login, email } = await newPerson()
  provider.accounts.set(login, { email, email_verified: false })
  const unverified = await enter(login)
  assert.deepEqual([unverified.status, unverified.code], [403, 'oidc_email_unverified'])
  provider.accounts.set('stranger', { email: 'stranger@example.org', email_verified: true })
  const stranger = await enter('stranger')
  assert.deepEqual([stranger.status, stranger.code], [403, 'oidc_no_member'])
  const page = await enter('stranger', 'text/html')
  assert.deepEqual([page.status, page.headers.get('location')], [303, '/sign-in#error=oidc_no_member'])
  const { login: left, email: gone } = await newPerson()
  assert.notEqual(sessionCookieOf(await enter(left)), '')
  await remove(gone)
  assert.equal((await enter(left)).code, 'oidc_no_member')
})

test('an answer for another browser, an old one, and a repeated one are refused', async () => {
  const { login } = await newPerson()
  const [first, second] = [await begin(), await begin()]
  const back = await provider.logIn(first.there, login)
  for (const cookie of [second.cookie, '', 'sandyard_oidc=x', `${first.cookie}x`]) {
    const reply = await request('', 'GET', back, { headers: { cookie } })
    assert.deepEqual([reply.status, reply.code, sessionCookieOf(reply)], [400, 'oidc_failed', ''])
  }
  assert.equal((await request('', 'GET', back, { headers: { cookie: first.cookie } })).status, 303)
  const again = await request('', 'GET', back, { headers: { cookie: first.cookie } })
  assert.equal(again.code, 'oidc_failed', 'a code works once')
})

test('an ID token with another nonce is refused', async () => {
  const { login } = await newPerson()
  const { there, cookie } = await begin()
  const back = await provider.logIn(there, login)
  const { deps } = control
  const pending = openPending(deps, cookie.split('=')[1] ?? '')
  const replayed = sealPending(deps, { ...pending, nonce: 'a'.repeat(43) })
  const reply = await request('', 'GET', back, { headers: { cookie: `sandyard_oidc=${replayed}` } })
  assert.deepEqual([reply.status, reply.code], [400, 'oidc_failed'])
})

test('a refusal of the provider is told as one', async () => {
  const { there, cookie } = await begin()
  const asked = new URL(there).searchParams
  const query = new URLSearchParams({ error: 'access_denied', state: asked.get('state') ?? '', iss: provider.issuer })
  const reply = await request(url, 'GET', `/auth/oidc/callback?${query.toString()}`, { headers: { cookie } })
  assert.deepEqual([reply.status, reply.code], [403, 'oidc_denied'])
})

test('a person of several organizations enters the one that they joined first', async () => {
  const { login, email } = await newPerson()
  const second = await addOrg(control.deps, 'second')
  await addPerson(control.deps, second.org_id, email, 'owner')
  const browser = await browserOf(url, sessionCookieOf(await enter(login)))
  const { body } = await browser.send('GET', '/auth/session')
  assert.deepEqual([body.org.slug, body.orgs.length], ['default', 2])
})

test('without the provider everything else works, and a sign-in says that it can not be reached', async (t) => {
  const port = await freePort()
  const origin = `http://127.0.0.1:${String(port)}`
  const down = await startOidcProvider([`${origin}/auth/oidc/callback`])
  const stop = await serve(port, openOidc(optionsOf(down), { clock: systemClock, log: makeLog('silent') }))
  t.after(stop)
  const began = await request(origin, 'GET', '/auth/oidc')
  const cookie = began.headers.getSetCookie()[0]?.split(';')[0] ?? ''
  down.accounts.set('x', { email: 'x@example.org', email_verified: true })
  const back = await down.logIn(began.headers.get('location') ?? '', 'x')
  await down.close()
  const reply = await request('', 'GET', back, { headers: { cookie } })
  assert.deepEqual([reply.status, reply.code], [503, 'oidc_unavailable'])

  const nowhere = openOidc({ ...optionsOf(down), label: null }, { clock: systemClock, log: makeLog('silent') })
  assert.equal(nowhere.label, new URL(down.issuer).host)
  await assert.rejects(nowhere.begin(`${origin}/auth/oidc/callback`), { code: 'oidc_unavailable' })
  assert.equal((await request(origin, 'GET', '/auth/options')).status, 200)
})
