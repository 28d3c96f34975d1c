import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import Provider from 'oidc-provider'

/** What the provider says of an account: a password of its form is never checked. */
export type Account = { readonly email: string; readonly email_verified: boolean }

/** A real provider of OpenID Connect on loopback. */
export type TestProvider = {
  readonly issuer: string
  readonly clientId: string
  readonly clientSecret: string
  /** The accounts by the name with which they log in, which is their subject too. A test may change them. */
  readonly accounts: Map<string, Account>
  /** Logs in and consents at the provider, as a person does. Resolves with the address to which the browser then goes. */
  logIn(url: string, login: string): Promise<string>
  close(): Promise<void>
}

const CLIENT = { client_id: 'sandyard', client_secret: 'the-secret-of-the-client' }

/** Starts a provider that sends browsers back to these addresses alone. Claims are at its UserInfo endpoint, as many have them. */
export async function startOidcProvider(redirectUris: readonly string[]): Promise<TestProvider> {
  const accounts = new Map<string, Account>()
  const server = createServer((request, reply) => handle(request, reply))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const issuer = `http://127.0.0.1:${String((server.address() as AddressInfo).port)}`
  const provider = new Provider(issuer, {
    clients: [
      { ...CLIENT, redirect_uris: redirectUris, response_types: ['code'], grant_types: ['authorization_code'] },
    ],
    claims: { openid: ['sub'], email: ['email', 'email_verified'] },
    cookies: { keys: ['a key of a test'] },
    pkce: { required: () => true },
    findAccount: (_context: unknown, accountId: string) => ({
      accountId,
      claims: () => ({ sub: accountId, ...accounts.get(accountId) }),
    }),
  })
  const handle = provider.callback()
  return {
    issuer,
    clientId: CLIENT.client_id,
    clientSecret: CLIENT.client_secret,
    accounts,
    logIn: (url, login) => walk(url, { login, issuer }),
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

const STEPS_MAX = 15

/** Follows redirects and fills in forms until the provider sends the browser elsewhere. */
async function walk(start: string, { login, issuer }: { login: string; issuer: string }): Promise<string> {
  const jar = new Map<string, string>()
  let at = start
  let form: URLSearchParams | null = null
  for (let step = 0; step < STEPS_MAX; step += 1) {
    const reply: Response = await fetch(at, {
      method: form === null ? 'GET' : 'POST',
      redirect: 'manual',
      headers: { cookie: [...jar].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(form === null ? {} : { body: form }),
    })
    for (const cookie of reply.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(cookie) ?? []
      if (value === '') jar.delete(name)
      else jar.set(name, value)
    }
    const location = reply.headers.get('location')
    form = null
    if (location !== null) {
      at = new URL(location, at).href
      if (!at.startsWith(issuer)) return at
      continue
    }
    const page = await reply.text()
    const prompt = /name="prompt" value="(\w+)"/.exec(page)?.[1]
    assert.ok(prompt !== undefined, `the provider answered ${String(reply.status)}: ${page.slice(0, 500)}`)
    at = new URL(/action="([^"]+)"/.exec(page)?.[1] ?? '', at).href
    form = new URLSearchParams({ prompt, ...(prompt === 'login' ? { login, password: 'any' } : {}) })
  }
  throw new Error('the provider led nowhere')
}
