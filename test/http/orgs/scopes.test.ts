import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { WebSocket } from 'ws'
import type { Access } from '../../../src/contract/operation.ts'
import { OPERATIONS } from '../../../src/contract/operations.ts'
import { includesScope, ROLE_OF_SCOPE, SCOPES, type Caller, type Scope } from '../../../src/domain/orgs/caller.ts'
import { asId, type ApiKeyId, type OrgId } from '../../../src/domain/ids.ts'
import type { UseCases } from '../../support/use-cases.ts'
import { assertReplyMatchesContract, operationIds } from '../../support/contract.ts'
import { makeHttpWorld, SANDBOX_ID } from '../../support/http-world.ts'
import { exampleRequest } from '../../support/example-requests.ts'

/** The caller of a key. Each key of these tests is the name of its only scope; that of an operator may also read. */
function withScope(key: string): Caller | null {
  const isOperator = key === 'operator'
  const scope = isOperator ? 'read' : SCOPES.find((one) => one === key)
  if (scope === undefined) return null
  const api_key_id = asId<ApiKeyId>(SANDBOX_ID)
  const actor = { kind: 'api_key', api_key_id, name: scope } as const
  return { org_id: asId<OrgId>(SANDBOX_ID), api_key_id, role: ROLE_OF_SCOPE[scope], scope, actor, isOperator }
}

const useCases: Partial<UseCases> = { authenticate: (key) => Promise.resolve(withScope(key)) }
const guarded = operationIds.filter((id) => OPERATIONS[id].access !== 'none')

test('every operation is refused to a key without its scope, by the scope’s name and before its body is read', async (t) => {
  const app = makeHttpWorld({ useCases })
  t.after(() => app.close())
  const refused = new Set<string>()
  for (const id of guarded) {
    const { access } = OPERATIONS[id]
    const { method, url } = exampleRequest(id)
    for (const scope of SCOPES.filter((held) => !isEnough(held, access))) {
      const headers = { authorization: `Bearer ${scope}`, 'content-type': 'application/json' }
      const reply = await app.inject({ method, url, headers, ...(method === 'GET' ? {} : { payload: '{broken' }) })
      const body: unknown = JSON.parse(reply.body)
      assert.equal(reply.statusCode, 403, `${id} with ${scope}: ${reply.body}`)
      assertReplyMatchesContract(id, 403, body)
      const { code, message, details } = Object(body).error
      assert.equal(code, 'forbidden')
      assert.match(message, new RegExp(`scope ${access}\\b.*${scope}`))
      assert.deepEqual(details, { field: 'scope', seen: scope, accepted: access })
      refused.add(id)
    }
  }
  const changing = guarded.filter((id) => OPERATIONS[id].method !== 'GET')
  assert.deepEqual(
    changing.filter((id) => !refused.has(id)),
    [],
    'a key with the scope `read` could change something by these operations',
  )
})

test('a key with only the scope of an operation is accepted', async (t) => {
  const app = makeHttpWorld({ useCases })
  t.after(() => app.close())
  for (const id of guarded) {
    const { method, url, body } = exampleRequest(id)
    const headers = { authorization: `Bearer ${OPERATIONS[id].access}` }
    const reply = await app.inject({ method, url, headers, ...(body === undefined ? {} : { payload: body }) })
    assert.ok(reply.statusCode !== 401 && reply.statusCode !== 403, `${id}: ${reply.body}`)
  }
})

test('the command channel is opened by a key that may write and refused to one that may only read, before the upgrade', async (t) => {
  const app = makeHttpWorld({ useCases })
  t.after(() => app.close())
  const url = (await app.listen({ host: '127.0.0.1', port: 0 })).replace('http:', 'ws:')
  const dial = (scope: Scope): WebSocket =>
    new WebSocket(`${url}/v1/sandboxes/${SANDBOX_ID}/agent`, { headers: { authorization: `Bearer ${scope}` } })
  const signal = AbortSignal.timeout(60_000)
  const refused = dial('read')
  refused.on('error', () => refused.terminate())
  const [, response] = await once(refused, 'unexpected-response', { signal })
  assert.equal(response.statusCode, 403)
  response.resume()
  const open = dial('write')
  await once(open, 'open', { signal })
  open.terminate()
})

function isEnough(held: Scope, needed: Access): boolean {
  return needed !== 'operator' && (needed === 'none' || includesScope(held, needed))
}
