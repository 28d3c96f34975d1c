import { OPERATIONS } from '../../contract/operations.ts'
import type { ACCOUNT_OPERATIONS } from '../../contract/orgs/account-operations.ts'
import type { PageInput } from '../../control/requests/page.ts'
import { SCOPES } from '../../domain/orgs/caller.ts'
import { etagOf } from '../../domain/requests/etag.ts'
import { listMembers } from '../../control/orgs/members.ts'
import { listApiKeys, createApiKey, getApiKey, revokeApiKey } from '../../control/orgs/api-keys.ts'
import { listCredentials, saveCredential, deleteCredential } from '../../control/orgs/registry-credentials.ts'
import { asId, type ApiKeyId, type CredentialId } from '../../domain/ids.ts'
import { PAGE_DEFAULT } from '../../domain/requests/request-bounds.ts'
import {
  messageReply,
  parseInstant,
  renderPage,
  taggedReply,
  type Handler,
  type HandlerFactory,
  type CallUseCase,
} from './handler.ts'

type Handled = keyof typeof ACCOUNT_OPERATIONS

/** What the operations on members, keys and registry credentials ask of the use cases. */
export function makeAccountHandlers(call: CallUseCase, handler: HandlerFactory): Record<Handled, Handler> {
  return {
    list_members: handler(OPERATIONS.list_members, async ({ query }, { caller }) =>
      renderPage(await call(listMembers, caller, pageOf(query)), (member) => JSON.stringify(member)),
    ),
    list_api_keys: handler(OPERATIONS.list_api_keys, async ({ query }, { caller }) =>
      renderPage(await call(listApiKeys, caller, pageOf(query)), (key) => JSON.stringify(key)),
    ),
    create_api_key: handler(OPERATIONS.create_api_key, async ({ body }, { caller, attempt }) => {
      const { name, scopes = SCOPES } = body
      const expires_at = parseInstant(body.expires_at ?? undefined)
      const { key, ...shown } = await call(createApiKey, caller, { name, scopes, expires_at, attempt })
      return { json: JSON.stringify({ ...shown, key }), tag: etagOf(JSON.stringify(shown)) }
    }),
    get_api_key: handler(OPERATIONS.get_api_key, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getApiKey, caller, keyIdOf(params)))),
    ),
    revoke_api_key: handler(OPERATIONS.revoke_api_key, async ({ params }, { caller, ifMatch }) => {
      await call(revokeApiKey, caller, keyIdOf(params), ifMatch)
      return messageReply('API key revoked')
    }),
    list_registry_credentials: handler(OPERATIONS.list_registry_credentials, async ({ query }, { caller }) =>
      renderPage(await call(listCredentials, caller, pageOf(query)), (credential) => JSON.stringify(credential)),
    ),
    save_registry_credential: handler(OPERATIONS.save_registry_credential, async ({ body }, { caller, attempt }) =>
      taggedReply(JSON.stringify(await call(saveCredential, caller, { ...body, attempt }))),
    ),
    delete_registry_credential: handler(
      OPERATIONS.delete_registry_credential,
      async ({ params }, { caller, ifMatch }) => {
        const id = asId<CredentialId>(params.credential_id.toLowerCase())
        await call(deleteCredential, caller, { id }, ifMatch)
        return messageReply('registry credential deleted')
      },
    ),
  }
}

function pageOf(query: { readonly cursor?: string; readonly limit?: number }): PageInput {
  return { cursor: query.cursor ?? null, limit: query.limit ?? PAGE_DEFAULT }
}

function keyIdOf({ api_key_id }: { readonly api_key_id: string }): ApiKeyId {
  return asId<ApiKeyId>(api_key_id.toLowerCase())
}
