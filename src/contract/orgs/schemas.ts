import { Type } from 'typebox'
import { ROLES, SCOPES } from '../../domain/orgs/caller.ts'
import { DateTime, int32, int64, nullable, pageOf, requestObject, stringEnum, Uuid, pageQuery } from '../common.ts'
import { EMAIL_RULE } from '../../domain/orgs/email.ts'
import { LIMITS, type LimitName } from '../../domain/orgs/quota.ts'
import { NAME_RULE } from '../../domain/names.ts'
import { REGISTRY_HOST_RULE } from '../../domain/orgs/registry-host.ts'
import { SSH_KEY_RULE } from '../../domain/orgs/ssh-key.ts'

/** The organization of the caller. */
export const OrgReply = Type.Object(
  {
    id: Uuid,
    name: Type.String(),
    slug: Type.String(),
    mfa_required: Type.Boolean({ description: 'Whether its members must sign in with a second factor.' }),
    role: stringEnum(ROLES, {
      description: 'The role of the caller in the organization. That of an API key follows from its scopes.',
    }),
    created_at: DateTime,
    updated_at: DateTime,
  },
  { title: 'Org', description: 'The organization that the API key belongs to.' },
)

const limit = (name: LimitName) => nullable(int32({ description: `Limit: ${LIMITS[name].what}. Null: unlimited.` }))

const included = (name: LimitName) =>
  nullable(int32({ description: `Limit: ${LIMITS[name].what}. Null: unlimited, or nothing if the plan has prices.` }))

/** The organization's limits, and its current use of them. */
export const QuotaUsageReply = Type.Object(
  {
    hard_cap: Type.Boolean({
      description:
        'Whether sandboxes stop when the included vCPU or memory hours are used up. True on a plan without prices.',
    }),
    is_suspended: Type.Boolean({
      description: 'Whether the operator suspended the organization, so that it can start nothing.',
    }),
    pool_exhausted: Type.Boolean({
      description: 'Whether included hours are used up this month, so that sandboxes are stopped and starts refused.',
    }),
    total_sandboxes: int64({ description: 'Sandboxes that exist, whatever their status.' }),
    concurrent_ephemeral_running: int64({ description: 'Ephemeral sandboxes that are starting or running.' }),
    concurrent_persistent_running: int64({ description: 'Persistent sandboxes that are starting or running.' }),
    vcpu_hours_used: Type.Number({ description: 'vCPU-hours of this UTC month so far.' }),
    memory_gib_hours_used: Type.Number({ description: 'Memory GiB-hours of this UTC month so far.' }),
    max_sandboxes: limit('max_sandboxes'),
    max_concurrent_ephemeral_running: limit('max_concurrent_ephemeral_running'),
    max_concurrent_persistent_running: limit('max_concurrent_persistent_running'),
    max_vcpus_per_sandbox: limit('max_vcpus_per_sandbox'),
    max_memory_mib_per_sandbox: limit('max_memory_mib_per_sandbox'),
    max_disk_size_mib_per_sandbox: limit('max_disk_size_mib_per_sandbox'),
    max_uptime_minutes_per_sandbox: limit('max_uptime_minutes_per_sandbox'),
    max_total_storage_gib: limit('max_total_storage_gib'),
    included_vcpu_hours: included('included_vcpu_hours'),
    included_memory_gib_hours: included('included_memory_gib_hours'),
    included_disk_gib_hours: included('included_disk_gib_hours'),
    included_storage_gib: included('included_storage_gib'),
    max_public_previews: limit('max_public_previews'),
    max_webhooks: limit('max_webhooks'),
  },
  { title: 'QuotaUsage', description: 'The limits of the organization, and how much of each it uses now.' },
)

/** Members of the organization. */

export const MemberReply = Type.Object(
  {
    id: Uuid,
    user_id: Uuid,
    email: Type.String(),
    display_name: Type.Optional(nullable(Type.String())),
    avatar_url: Type.Optional(nullable(Type.String())),
    role: stringEnum(ROLES),
    joined_at: DateTime,
  },
  { title: 'Member', description: 'A person who belongs to the organization.' },
)

export const MemberPage = pageOf(MemberReply, 'MemberPage')
export const ListMembersQuery = requestObject(pageQuery)
export const MemberIdParams = requestObject({ member_id: Uuid })

/** Changes of members. The published API has no routes for them; the routes here are an addition of this project. */

export const InviteMemberInput = requestObject(
  {
    email: Type.String({ description: `${EMAIL_RULE}.` }),
    role: Type.Optional(stringEnum(ROLES, { description: 'The role of the member; `member` unless given.' })),
  },
  { title: 'InviteMemberInput', description: 'A person to invite.' },
)

export const InvitationReply = Type.Object(
  {
    member: MemberReply,
    sign_in_path: Type.String({
      description:
        'The path of the link with which the member signs in: append it to the URL of the dashboard. It works once. Only this reply shows it.',
    }),
    expires_at: Type.String({ format: 'date-time', description: 'When the link expires.' }),
  },
  { title: 'Invitation', description: 'A new member and the link with which they sign in.' },
)

export const ChangeMemberInput = requestObject(
  { role: stringEnum(ROLES) },
  { title: 'ChangeMemberInput', description: 'The new role of a member.' },
)

/** API keys. The published API has no routes for API keys; the routes here are an addition of this project. */

const Scopes = Type.Array(stringEnum(SCOPES), {
  minItems: 1,
  uniqueItems: true,
  description:
    '`read` reads. `write` also changes sandboxes, volumes and files, and runs commands. `admin` also manages keys, credentials and caps.',
})

const fields = {
  id: Uuid,
  name: Type.String(),
  scopes: Scopes,
  created_at: DateTime,
  expires_at: nullable(Type.String({ format: 'date-time', description: 'When the key expires. Null: never.' })),
  last_used_at: nullable(
    Type.String({ format: 'date-time', description: 'When the key was last used, to the minute. Null: not yet.' }),
  ),
  revoked_at: nullable(
    Type.String({ format: 'date-time', description: 'When the key was revoked. Null: it was not.' }),
  ),
}

export const ApiKeyReply = Type.Object(fields, { title: 'ApiKey', description: 'An API key, without its secret.' })

export const CreatedApiKeyReply = Type.Object(
  { ...fields, key: Type.String({ description: 'The secret. Only this reply shows it.' }) },
  { title: 'CreatedApiKey', description: 'A new API key with its secret.' },
)

export const ApiKeyPage = pageOf(ApiKeyReply, 'ApiKeyPage')

export const CreateApiKeyInput = requestObject(
  {
    name: Type.String({ description: `${NAME_RULE}.` }),
    scopes: Type.Optional(Scopes),
    expires_at: Type.Optional(
      nullable(Type.String({ format: 'date-time', description: 'When the key expires, in the future. Null: never.' })),
    ),
  },
  { title: 'CreateApiKeyInput', description: 'An API key to create. Without `scopes`, the key has all scopes.' },
)

export const ApiKeyIdParams = requestObject({ api_key_id: Uuid })
export const ListApiKeysQuery = requestObject(pageQuery)

/** SSH keys. The published API has no routes for them; the routes here are an addition of this project. */

export const SshKeyReply = Type.Object(
  {
    id: Uuid,
    name: Type.String(),
    fingerprint: Type.String({ description: 'The SHA-256 of the key, as `ssh-keygen -l` prints it.' }),
    public_key: Type.String({ description: 'The type of the key and its base64, without a comment.' }),
    created_at: DateTime,
  },
  { title: 'SshKey', description: 'A public key that opens SSH connections to the sandboxes of the organization.' },
)

export const SshKeyPage = pageOf(SshKeyReply, 'SshKeyPage')

export const AddSshKeyInput = requestObject(
  {
    name: Type.String({ description: `${NAME_RULE}.` }),
    public_key: Type.String({ description: `The key: ${SSH_KEY_RULE}.` }),
  },
  { title: 'AddSshKeyInput', description: 'A public key to add.' },
)

export const SshKeyIdParams = requestObject({ ssh_key_id: Uuid })
export const ListSshKeysQuery = requestObject(pageQuery)

/**
 * Credentials for image registries. The published API has no routes for credentials; the routes here are an addition of
 * this project.
 */

export const RegistryCredentialReply = Type.Object(
  { id: Uuid, host: Type.String(), username: Type.String(), created_at: DateTime },
  { title: 'RegistryCredential', description: 'A credential for a registry; its password is never shown.' },
)

export const RegistryCredentialPage = pageOf(RegistryCredentialReply, 'RegistryCredentialPage')

export const SaveRegistryCredentialInput = requestObject(
  {
    host: Type.String({ description: `${REGISTRY_HOST_RULE}.` }),
    username: Type.String(),
    password: Type.String({ format: 'password' }),
  },
  { title: 'SaveCredentialInput', description: 'A name and password for one registry.' },
)

export const RegistryCredentialIdParams = requestObject({ credential_id: Uuid })
export const ListRegistryCredentialsQuery = requestObject(pageQuery)
