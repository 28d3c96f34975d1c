import { ApiKeyIdParams, ApiKeyPage, ApiKeyReply, CreateApiKeyInput, CreatedApiKeyReply, ListApiKeysQuery } from '../api-keys.ts' // prettier-ignore
import { MessageReply } from '../common.ts'
import { ListMembersQuery, MemberPage } from '../members.ts'
import { json, operation, type Operation } from '../operation.ts'
import {
  ListRegistryCredentialsQuery, RegistryCredentialIdParams, RegistryCredentialPage, RegistryCredentialReply, SaveCredentialInput,
} from '../registry-credentials.ts' // prettier-ignore

/** Who may use the organization: people, API keys, and what it is known by at registries. */
export const ACCOUNT_OPERATIONS = {
  list_members: operation({
    id: 'list_members',
    method: 'GET',
    path: '/v1/members',
    tag: 'Members',
    summary: 'List the members of the organization, who joined last first',
    query: ListMembersQuery,
    reply: json(MemberPage, 'A page of members.'),
  }),
  list_api_keys: operation({
    id: 'list_api_keys',
    method: 'GET',
    path: '/v1/api-keys',
    tag: 'API keys',
    access: 'admin',
    summary: 'List the API keys, the newest first; revoked and expired ones stay in the list',
    query: ListApiKeysQuery,
    reply: json(ApiKeyPage, 'A page of keys.'),
  }),
  create_api_key: operation({
    id: 'create_api_key',
    method: 'POST',
    path: '/v1/api-keys',
    tag: 'API keys',
    access: 'admin',
    summary: 'Make an API key',
    body: CreateApiKeyInput,
    reply: json(CreatedApiKeyReply, 'The key; its secret is shown this once.'),
  }),
  get_api_key: operation({
    id: 'get_api_key',
    method: 'GET',
    path: '/v1/api-keys/{api_key_id}',
    tag: 'API keys',
    access: 'admin',
    summary: 'Get an API key',
    params: ApiKeyIdParams,
    reply: json(ApiKeyReply, 'The key, without its secret.'),
    problems: ['api_key_not_found'],
  }),
  revoke_api_key: operation({
    id: 'revoke_api_key',
    method: 'DELETE',
    path: '/v1/api-keys/{api_key_id}',
    tag: 'API keys',
    access: 'admin',
    summary: 'End an API key for good',
    description: 'Also the one that asks. Revoking a revoked key succeeds. Connections that are open already go on.',
    params: ApiKeyIdParams,
    reply: json(MessageReply, 'The key is refused from now on.'),
    problems: ['api_key_not_found'],
  }),
  list_registry_credentials: operation({
    id: 'list_registry_credentials',
    method: 'GET',
    path: '/v1/registry-credentials',
    tag: 'Registry credentials',
    access: 'admin',
    summary: 'List the credentials for image registries, the newest first',
    query: ListRegistryCredentialsQuery,
    reply: json(RegistryCredentialPage, 'A page of credentials.'),
  }),
  save_registry_credential: operation({
    id: 'save_registry_credential',
    method: 'POST',
    path: '/v1/registry-credentials',
    tag: 'Registry credentials',
    access: 'admin',
    summary: 'Save the credential for an image registry, in place of an earlier one for it',
    body: SaveCredentialInput,
    reply: json(RegistryCredentialReply, 'The credential, without its password.'),
  }),
  delete_registry_credential: operation({
    id: 'delete_registry_credential',
    method: 'DELETE',
    path: '/v1/registry-credentials/{credential_id}',
    tag: 'Registry credentials',
    access: 'admin',
    summary: 'Delete a credential for an image registry',
    params: RegistryCredentialIdParams,
    reply: json(MessageReply, 'The credential is gone.'),
    problems: ['registry_credential_not_found'],
  }),
} as const satisfies Record<string, Operation>
