import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OPERATIONS, type OperationId } from '../../../src/contract/operations.ts'
import { asId, type ApiKeyId, type OrgId, type SessionId, type UserId } from '../../../src/domain/ids.ts'
import { formatSessionToken } from '../../../src/domain/orgs/api-key.ts'
import { ROLES, SCOPE_OF_ROLE, type Role } from '../../../src/domain/orgs/caller.ts'
import { csrfTokenOf } from '../../../src/domain/sign-in/session.ts'
import type { SignedIn } from '../../../src/control/sign-in/sessions.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { assertReplyMatchesContract, operationIds } from '../../support/contract.ts'
import { exampleRequest } from '../../support/example-requests.ts'
import { makeHttpWorld, SANDBOX_ID } from '../../support/http-world.ts'
import type { UseCases } from '../../support/use-cases.ts'

/** What only these roles may do beside reading. Every other operation that needs a key is a read, or in one of these lists. */
const BY_ADMINS: readonly OperationId[] = [
  'invite_member', 'change_member', 'remove_member',
  'list_api_keys', 'create_api_key', 'get_api_key', 'revoke_api_key',
  'add_ssh_key', 'remove_ssh_key',
  'list_registry_credentials', 'save_registry_credential', 'delete_registry_credential',
  'create_webhook', 'list_webhooks', 'get_webhook', 'update_webhook', 'delete_webhook', 'test_webhook', 'rotate_webhook_secret',
  'list_webhook_deliveries', 'get_webhook_delivery', 'resend_webhook_delivery',
] // prettier-ignore
const BY_OPERATORS: readonly OperationId[] = [
  'read_installation_metrics', 'list_servers', 'list_workers', 'drain_worker', 'resume_worker', 'list_waiting_sandboxes', 'list_orgs', 'list_plans',
] // prettier-ignore
/** Reads that give more than a look: a channel runs commands. */
const READS_BY_MEMBERS: readonly OperationId[] = ['open_agent']

const tokens = new Map(ROLES.map((role) => [role, formatSessionToken(systemRandom.bytes(32))]))

function sessionOf(role: Role, token: string): SignedIn {
  const [org_id, user_id] = [asId<OrgId>(SANDBOX_ID), asId<UserId>(SANDBOX_ID)]
  const actor = { kind: 'user', user_id, label: role, redacted_email: 'a***@example.org' } as const
  const caller = { org_id, api_key_id: asId<ApiKeyId>(SANDBOX_ID), role, scope: SCOPE_OF_ROLE[role], actor }
  const end = new Date('2100-01-01T00:00:00Z')
  const session = {
    id: asId<SessionId>(SANDBOX_ID), org_id, user_id, role, email: 'a@example.org', display_name: null, signed_in_by: 'link',
    is_confined: false, is_operator: false, last_seen_at: end, expires_at: end,
  } as const // prettier-ignore
  assert.ok(token !== '')
  return { caller, session }
}

const useCases: Partial<UseCases> = {
  authenticateSession: (token) => {
    const found = [...tokens].find(([, one]) => one === token)
    return Promise.resolve(found === undefined ? null : sessionOf(...found))
  },
}

function mayUse(role: Role, id: OperationId): boolean {
  if (BY_OPERATORS.includes(id)) return false
  if (BY_ADMINS.includes(id)) return role === 'owner' || role === 'admin'
  const { method, access }: { readonly method: string; readonly access: string } = OPERATIONS[id]
  const isRead = method === 'GET' && !READS_BY_MEMBERS.includes(id)
  assert.ok(isRead || access === 'write', `${id} belongs to a list of this test`)
  return isRead || role !== 'viewer'
}

test('every operation is open to exactly the roles that it is for, and refused to others before its body is read', async (t) => {
  const app = makeHttpWorld({ useCases, server: { signIn: { oidc: null } } })
  t.after(() => app.close())
  for (const id of operationIds.filter((one) => OPERATIONS[one].access !== 'none'))
    for (const role of ROLES) {
      const { method, url, body } = exampleRequest(id)
      const token = tokens.get(role) ?? ''
      const headers = {
        cookie: `sandyard_session=${token}`,
        'sec-fetch-site': 'same-origin',
        'content-type': 'application/json',
        ...(method === 'GET' ? {} : { 'x-sandyard-csrf': csrfTokenOf(token) }),
      }
      if (mayUse(role, id)) {
        const reply = await app.inject({ method, url, headers, ...(body === undefined ? {} : { payload: body }) })
        assert.ok(reply.statusCode !== 401 && reply.statusCode !== 403, `${id} as ${role}: ${reply.body}`)
        continue
      }
      const reply = await app.inject({ method, url, headers, ...(method === 'GET' ? {} : { payload: '{broken' }) })
      assert.equal(reply.statusCode, 403, `${id} as ${role}: ${reply.body}`)
      assertReplyMatchesContract(id, 403, JSON.parse(reply.body))
      const { code, details } = JSON.parse(reply.body).error
      assert.equal(code, 'forbidden')
      assert.deepEqual([details.field, details.seen], ['role', role])
    }
})

test('without sign-in, the cookie of a session is no key', async (t) => {
  const app = makeHttpWorld({ useCases })
  t.after(() => app.close())
  const headers = { cookie: `sandyard_session=${tokens.get('owner') ?? ''}`, 'sec-fetch-site': 'same-origin' }
  assert.equal((await app.inject({ method: 'GET', url: '/v1/sandboxes', headers })).statusCode, 401)
  assert.equal((await app.inject({ method: 'GET', url: '/auth/session', headers })).statusCode, 404)
})
