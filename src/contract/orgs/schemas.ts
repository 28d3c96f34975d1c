import { Type } from 'typebox'
import { ROLES, SCOPES } from '../../domain/orgs/caller.ts'
import { DateTime, int32, int64, nullable, pageOf, requestObject, stringEnum, Uuid, pageQuery } from '../common.ts'
import { LIMITS, type LimitName } from '../../domain/orgs/quota.ts'
import { NAME_RULE } from '../../domain/names.ts'
import { REGISTRY_HOST_RULE } from '../../domain/orgs/registry-host.ts'

/** The organization of the caller. The published description gives the fields. */
export const OrgReply = Type.Object(
  {
    id: Uuid,
    name: Type.String(),
    slug: Type.String(),
    mfa_required: Type.Boolean({ description: 'Whether its members must sign in with a second factor.' }),
    role: stringEnum(ROLES, { description: 'What the caller may do in it.' }),
    created_at: DateTime,
    updated_at: DateTime,
  },
  { title: 'Org', description: 'The organization that the API key belongs to.' },
)

const limit = (name: LimitName) => nullable(int32({ description: `Limit: ${LIMITS[name].what}. null: unlimited.` }))

/** Limits and what is in use of them. Source: openapi.json, `QuotaReport` with `PoolUsage`. */
export const QuotaUsageReply = Type.Object(
  {
    hard_cap: Type.Boolean({
      description: 'Whether the included vCPU and memory hours are walls: true on a plan without prices.',
    }),
    is_suspended: Type.Boolean({ description: 'Whether the organization may start nothing, by hand of the operator.' }),
    pool_exhausted: Type.Boolean({
      description: 'Whether a wall was met this month, so that sandboxes are stopped and starts refused.',
    }),
    total_sandboxes: int64({ description: 'Sandboxes that exist, whatever their status.' }),
    concurrent_ephemeral_running: int64({ description: 'Ephemeral sandboxes that start or run.' }),
    concurrent_persistent_running: int64({ description: 'Persistent sandboxes that start or run.' }),
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
    included_vcpu_hours: limit('included_vcpu_hours'),
    included_memory_gib_hours: limit('included_memory_gib_hours'),
    included_disk_gib_hours: limit('included_disk_gib_hours'),
    included_storage_gib: limit('included_storage_gib'),
  },
  { title: 'QuotaUsage', description: 'What the organization may have, and what it has now.' },
)

/** Members of the organization. Source: service description 2.5 and 4.8; the roles from the contract decisions. */

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

/** API keys. These routes are the project's own: the published description has none for them. */

const Scopes = Type.Array(stringEnum(SCOPES), {
  minItems: 1,
  uniqueItems: true,
  description:
    '`read` reads; `write` changes sandboxes, volumes and their files and runs commands; `admin` manages keys, credentials and caps. Each includes those before it.',
})

const fields = {
  id: Uuid,
  name: Type.String(),
  scopes: Scopes,
  created_at: DateTime,
  expires_at: nullable(Type.String({ format: 'date-time', description: 'From then on it is refused; null: never.' })),
  last_used_at: nullable(Type.String({ format: 'date-time', description: 'To the minute; null: not yet.' })),
  revoked_at: nullable(Type.String({ format: 'date-time', description: 'When it was ended; null: it was not.' })),
}

export const ApiKeyReply = Type.Object(fields, { title: 'ApiKey', description: 'An API key, without its secret.' })

export const CreatedApiKeyReply = Type.Object(
  { ...fields, key: Type.String({ description: 'The secret. It is in this reply and nowhere else.' }) },
  { title: 'CreatedApiKey', description: 'A new API key with its secret.' },
)

export const ApiKeyPage = pageOf(ApiKeyReply, 'ApiKeyPage')

export const CreateApiKeyInput = requestObject(
  {
    name: Type.String({ description: `${NAME_RULE}.` }),
    scopes: Type.Optional(Scopes),
    expires_at: Type.Optional(
      nullable(Type.String({ format: 'date-time', description: 'In the future; null: never.' })),
    ),
  },
  { title: 'CreateApiKeyInput', description: 'What the key is to be. Without scopes it has all of them.' },
)

export const ApiKeyIdParams = requestObject({ api_key_id: Uuid })
export const ListApiKeysQuery = requestObject(pageQuery)

/** Credentials for image registries. These routes are the project's own: the published description has none for them. */

export const RegistryCredentialReply = Type.Object(
  { id: Uuid, host: Type.String(), username: Type.String(), created_at: DateTime },
  { title: 'RegistryCredential', description: 'A credential for a registry; its password is never shown.' },
)

export const RegistryCredentialPage = pageOf(RegistryCredentialReply, 'RegistryCredentialPage')

export const SaveCredentialInput = requestObject(
  {
    host: Type.String({ description: `${REGISTRY_HOST_RULE}.` }),
    username: Type.String(),
    password: Type.String({ format: 'password' }),
  },
  { title: 'SaveCredentialInput', description: 'A name and password for one registry.' },
)

export const RegistryCredentialIdParams = requestObject({ credential_id: Uuid })
export const ListRegistryCredentialsQuery = requestObject(pageQuery)
