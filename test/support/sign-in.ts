import assert from 'node:assert/strict'
import { createSignInLink } from '../../src/control/sign-in/links.ts'
import { insertMember } from '../../src/control/orgs/members.ts'
import type { BaseDeps } from '../../src/control/deps.ts'
import type { OrgId } from '../../src/domain/ids.ts'
import { OPERATOR_ACTOR, type Role } from '../../src/domain/orgs/caller.ts'

/** What a browser does with the routes of sign-in: it keeps the cookie and names its origin. */

type Deps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'random'>

/** A reply with its JSON. `code` is empty unless it is a refusal. */
export type JsonReply = {
  readonly status: number
  readonly headers: Headers
  readonly body: any // oxlint-disable-line typescript/no-explicit-any -- replies of many routes
  readonly code: string
}

/** A browser that is signed in. */
export type Browser = {
  readonly url: string
  readonly cookie: string
  readonly csrf: string
  /** Sends a request as a page of the server does. A header of null leaves out what the page would send. */
  send(method: string, path: string, options?: RequestOptions): Promise<JsonReply>
}

export type RequestOptions = {
  readonly url?: string
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string | null>>
}

/** The headers of a page of the server itself. */
export const SAME_ORIGIN = { 'sec-fetch-site': 'same-origin' }

/** Sends a request with exactly these headers. */
export async function request(
  url: string,
  method: string,
  path: string,
  options: RequestOptions = {},
): Promise<JsonReply> {
  const { body, headers = {} } = options
  const given = Object.entries(headers).flatMap(([name, value]) => (value === null ? [] : [[name, value] as const]))
  const reply = await fetch(`${options.url ?? url}${path}`, {
    method,
    redirect: 'manual',
    headers: { ...Object.fromEntries(given), ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  const text = await reply.text()
  const json = text === '' || !(reply.headers.get('content-type') ?? '').includes('json') ? null : JSON.parse(text)
  return { status: reply.status, headers: reply.headers, body: json, code: json?.error?.code ?? '' }
}

/** Adds a member. Resolves with the user's id. */
export async function addPerson(
  deps: Deps,
  org_id: OrgId,
  email: string,
  role: Role,
  isOperator = false,
): Promise<string> {
  const acting = { org_id, actor: OPERATOR_ACTOR }
  const person = { email, role, display_name: null, isOperator }
  return (await deps.db.transaction('system', (tx) => insertMember(deps, tx, acting, person))).user_id
}

/** Makes a sign-in link, as the operator does. Resolves with its token. */
export async function makeToken(deps: Deps, org_id: OrgId, email: string): Promise<string> {
  return (await createSignInLink(deps, { org_id, actor: OPERATOR_ACTOR }, email)).token
}

/** Signs in with the token of a link. */
export async function useLink(url: string, token: string): Promise<Browser> {
  const reply = await request(url, 'POST', '/auth/link', { body: { token }, headers: SAME_ORIGIN })
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  return browserOf(url, cookieOf(reply))
}

/** The browser that has this cookie. */
export async function browserOf(url: string, cookie: string): Promise<Browser> {
  const seen = await request(url, 'GET', '/auth/session', { headers: { cookie, ...SAME_ORIGIN } })
  assert.equal(seen.status, 200, JSON.stringify(seen.body))
  const csrf = seen.body.csrf_token
  return {
    url,
    cookie,
    csrf,
    send(method, path, { headers = {}, ...options } = {}) {
      const change = method === 'GET' ? {} : { 'x-sandyard-csrf': csrf }
      return request(url, method, path, { ...options, headers: { cookie, ...SAME_ORIGIN, ...change, ...headers } })
    },
  }
}

/** Signs a member in. */
export async function signIn(deps: Deps, url: string, org_id: OrgId, email: string): Promise<Browser> {
  return useLink(url, await makeToken(deps, org_id, email))
}

/** The cookie that a reply sets, as a browser sends it back. */
export function cookieOf({ headers }: Pick<JsonReply, 'headers'>): string {
  const [cookie = ''] = headers.getSetCookie()
  return cookie.split(';', 1)[0] ?? ''
}
