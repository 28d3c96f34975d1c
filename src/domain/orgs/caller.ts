import type { ApiKeyId, OrgId } from '../ids.ts'

export const ROLES = ['owner', 'admin', 'member', 'viewer'] as const
export type Role = (typeof ROLES)[number]

/**
 * What an API key may do. `read` reads. `write` changes sandboxes, volumes and their files, and runs commands. `admin`
 * manages keys, credentials and caps. Each scope includes the scopes before it.
 */
export const SCOPES = ['read', 'write', 'admin'] as const
export type Scope = (typeof SCOPES)[number]

/**
 * What a member may do who is signed in: the operations of a key with this scope. An owner may do more than an admin only with
 * other owners, which `control/orgs/members.ts` decides.
 */
export const SCOPE_OF_ROLE: Record<Role, Scope> = { viewer: 'read', member: 'write', admin: 'admin', owner: 'admin' }

/** The role of a key's caller, by the widest scope of the key. A key is no member, and nobody's role could be reported. */
export const ROLE_OF_SCOPE: Record<Scope, Role> = { read: 'viewer', write: 'member', admin: 'owner' }

/** The least role that a scope needs. */
export function leastRoleOf(needed: Scope): Role {
  return ROLES.findLast((role) => includesScope(SCOPE_OF_ROLE[role], needed)) ?? 'owner'
}

/** Whether a held scope includes a needed one. */
export function includesScope(held: Scope, needed: Scope): boolean {
  return SCOPES.indexOf(held) >= SCOPES.indexOf(needed)
}

/** The widest of a key's scopes; a key has at least one. */
export function widestScope(scopes: readonly Scope[]): Scope {
  return SCOPES.findLast((scope) => scopes.includes(scope)) ?? 'read'
}

/** The sender of a request: an authenticated API key, or the session of a member, and the organization. */
export type Caller = {
  readonly org_id: OrgId
  /** The id of the API key, of the SSH key, or of the session, so that each is counted and watched by itself. */
  readonly api_key_id: ApiKeyId
  readonly role: Role
  /** The widest scope of the key, or that of the member's role. */
  readonly scope: Scope
  readonly actor: Actor
  /** Whether the key or the member is of an operator, who may see what is of all organizations, and drain workers. */
  readonly isOperator?: boolean
}

/** The organization that a use case changes, and the actor of its events. Every `Caller` is an `OrgActor`. */
export type OrgActor = Pick<Caller, 'org_id' | 'actor'>

/** Who caused an event: `EventActor` of openapi.json. */
export type Actor =
  | { readonly kind: 'user'; readonly user_id: string; readonly label: string; readonly redacted_email: string }
  | { readonly kind: 'api_key'; readonly api_key_id: string; readonly name: string }
  | { readonly kind: 'system'; readonly code: string; readonly label: string }
  | { readonly kind: 'ssh_key'; readonly key_id: string; readonly fingerprint: string; readonly label: string | null }

/** An actor for the program's log. */
export function formatActorForLog(actor: Actor): string {
  switch (actor.kind) {
    case 'api_key':
      return `key '${actor.name}'`
    case 'user':
      return `user '${actor.label}'`
    case 'ssh_key':
      return `SSH key ${actor.fingerprint}`
    case 'system':
      return actor.code
  }
}

/** The user of the `sandyard` command: anyone who can read the installation's data folder. */
export const OPERATOR_ACTOR: Actor = { kind: 'system', code: 'operator', label: 'the sandyard command' }

/** The code of the program itself. */
export const SYSTEM_ACTOR_KEY = 'sandyard'
/** The program itself, as the cause of an event. */
export const SYSTEM_ACTOR: Actor = { kind: 'system', code: SYSTEM_ACTOR_KEY, label: 'Sandyard' }

/** The codes of system actors. */
export const SYSTEM_ACTOR_KEYS: readonly string[] = [SYSTEM_ACTOR_KEY, 'operator']
