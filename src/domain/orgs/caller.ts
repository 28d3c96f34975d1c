import type { ApiKeyId, OrgId } from '../ids.ts'

export const ROLES = ['owner', 'admin', 'member', 'viewer'] as const
export type Role = (typeof ROLES)[number]

/**
 * What a key may do: `read` reads, `write` changes sandboxes, volumes and their files and runs commands, `admin` manages
 * keys, credentials and caps. Each includes those before it.
 */
export const SCOPES = ['read', 'write', 'admin'] as const
export type Scope = (typeof SCOPES)[number]

/** The role that a key with a scope has in its organization. Source: contract decisions, "Roles". */
export const ROLE_OF_SCOPE: Record<Scope, Role> = { read: 'viewer', write: 'member', admin: 'owner' }

/** Whether a caller with one scope may do what needs another. */
export function includesScope(held: Scope, needed: Scope): boolean {
  return SCOPES.indexOf(held) >= SCOPES.indexOf(needed)
}

/** The widest of a key's scopes; a key has at least one. */
export function widestScope(scopes: readonly Scope[]): Scope {
  return SCOPES.findLast((scope) => scopes.includes(scope)) ?? 'read'
}

/** Who asks: an authenticated API key and the organization it belongs to. */
export type Caller = {
  readonly org_id: OrgId
  readonly api_key_id: ApiKeyId
  readonly role: Role
  /** The widest scope of the key. */
  readonly scope: Scope
  readonly actor: Actor
}

/** For whom a use case acts: the organization, and who its events name. A `CallWorker` is one. */
export type OrgActor = Pick<Caller, 'org_id' | 'actor'>

/** Who caused an event; the shapes of service description 2.4 and openapi.json's EventActor. */
export type Actor =
  | { readonly kind: 'user'; readonly user_id: string; readonly label: string; readonly redacted_email: string }
  | { readonly kind: 'api_key'; readonly api_key_id: string; readonly name: string }
  | { readonly kind: 'system'; readonly code: string; readonly label: string }
  | { readonly kind: 'ssh_key'; readonly key_id: string; readonly fingerprint: string; readonly label: string | null }

/** Who uses the `sandyard` command: whoever may read the installation's data folder. */
export const OPERATOR_ACTOR: Actor = { kind: 'system', code: 'operator', label: 'the sandyard command' }

/** The program itself, as the cause of an event. */
export const SYSTEM_ACTOR: Actor = { kind: 'system', code: 'sandyard', label: 'Sandyard' }
