import { OPERATIONS } from '../../contract/operations.ts'
import type { ORG_OPERATIONS } from '../../contract/orgs/operations.ts'
import { createApiKey, getApiKey, listApiKeys, revokeApiKey } from '../../control/orgs/api-keys.ts'
import { changeMemberRole, listMembers, removeMember } from '../../control/orgs/members.ts'
import { getOrg } from '../../control/orgs/orgs.ts'
import { getQuotas } from '../../control/orgs/quotas.ts'
import { deleteCredential, listCredentials, saveCredential } from '../../control/orgs/registry-credentials.ts'
import { addSshKey, getSshKey, listSshKeys, removeSshKey } from '../../control/orgs/ssh-keys.ts'
import { inviteMember } from '../../control/sign-in/links.ts'
import { asId, type ApiKeyId, type CredentialId, type MemberId, type SshKeyId } from '../../domain/ids.ts'
import { SCOPES } from '../../domain/orgs/caller.ts'
import { etagOf } from '../../domain/requests/etag.ts'
import { signInPath } from '../../domain/sign-in/session.ts'
import {
  messageReply, pageInput, parseInstant, renderPage, taggedReply, type Handler, type HandlerFactory,
} from './handler.ts' // prettier-ignore
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of the organization: its quotas, members, API keys, SSH keys and registry credentials. */
export function makeOrgHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof ORG_OPERATIONS, Handler> {
  return {
    get_org: handler(OPERATIONS.get_org, async (_request, { caller }) =>
      taggedReply(JSON.stringify(await call(getOrg, caller))),
    ),
    get_quotas: handler(OPERATIONS.get_quotas, async (_request, { caller }) =>
      JSON.stringify(await call(getQuotas, caller)),
    ),
    list_members: handler(OPERATIONS.list_members, async ({ query }, { caller }) =>
      renderPage(await call(listMembers, caller, pageInput(query)), (member) => JSON.stringify(member)),
    ),
    invite_member: handler(OPERATIONS.invite_member, async ({ body: { email, role = 'member' } }, { caller }) => {
      const { member, token, expires_at } = await call(inviteMember, caller, { email, role })
      return JSON.stringify({ member, sign_in_path: signInPath(token), expires_at })
    }),
    change_member: handler(OPERATIONS.change_member, async ({ params, body: { role } }, { caller }) =>
      JSON.stringify(await call(changeMemberRole, caller, { id: memberIdOf(params), role })),
    ),
    remove_member: handler(OPERATIONS.remove_member, async ({ params }, { caller }) => {
      await call(removeMember, caller, { id: memberIdOf(params) })
      return messageReply('member removed')
    }),
    list_api_keys: handler(OPERATIONS.list_api_keys, async ({ query }, { caller }) =>
      renderPage(await call(listApiKeys, caller, pageInput(query)), (key) => JSON.stringify(key)),
    ),
    create_api_key: handler(OPERATIONS.create_api_key, async ({ body }, { caller, attempt }) => {
      const { name, scopes = SCOPES } = body
      const expires_at = parseInstant(body.expires_at ?? undefined)
      const { key, ...shown } = await call(createApiKey, caller, { name, scopes, expires_at, attempt })
      // The ETag is that of the key without its secret, because later reads return the key in that form.
      return { json: JSON.stringify({ ...shown, key }), tag: etagOf(JSON.stringify(shown)) }
    }),
    get_api_key: handler(OPERATIONS.get_api_key, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getApiKey, caller, apiKeyIdOf(params)))),
    ),
    revoke_api_key: handler(OPERATIONS.revoke_api_key, async ({ params }, { caller, ifMatch }) => {
      await call(revokeApiKey, caller, apiKeyIdOf(params), ifMatch)
      return messageReply('API key revoked')
    }),
    list_ssh_keys: handler(OPERATIONS.list_ssh_keys, async ({ query }, { caller }) =>
      renderPage(await call(listSshKeys, caller, pageInput(query)), (key) => JSON.stringify(key)),
    ),
    add_ssh_key: handler(OPERATIONS.add_ssh_key, async ({ body }, { caller, attempt }) =>
      taggedReply(JSON.stringify(await call(addSshKey, caller, { ...body, attempt }))),
    ),
    get_ssh_key: handler(OPERATIONS.get_ssh_key, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getSshKey, caller, asId<SshKeyId>(params.ssh_key_id.toLowerCase())))),
    ),
    remove_ssh_key: handler(OPERATIONS.remove_ssh_key, async ({ params }, { caller, ifMatch }) => {
      await call(removeSshKey, caller, { id: asId<SshKeyId>(params.ssh_key_id.toLowerCase()) }, ifMatch)
      return messageReply('SSH key removed')
    }),
    list_registry_credentials: handler(OPERATIONS.list_registry_credentials, async ({ query }, { caller }) =>
      renderPage(await call(listCredentials, caller, pageInput(query)), (credential) => JSON.stringify(credential)),
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

function apiKeyIdOf({ api_key_id }: { readonly api_key_id: string }): ApiKeyId {
  return asId<ApiKeyId>(api_key_id.toLowerCase())
}

function memberIdOf({ member_id }: { readonly member_id: string }): MemberId {
  return asId<MemberId>(member_id.toLowerCase())
}
