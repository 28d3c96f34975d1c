import type { ApiKeyId, OrgId } from './ids.ts'

export const ROLES = ['owner', 'admin', 'member', 'viewer'] as const
export type Role = (typeof ROLES)[number]

/** Who asks: an authenticated API key and the organization it belongs to. */
export type Caller = {
  readonly org_id: OrgId
  readonly api_key_id: ApiKeyId
  readonly role: Role
  readonly actor: Actor
}

/** Who caused an event; the shapes of service description 2.4 and openapi.json's EventActor. */
export type Actor =
  | { readonly kind: 'user'; readonly user_id: string; readonly label: string; readonly redacted_email: string }
  | { readonly kind: 'api_key'; readonly api_key_id: string; readonly name: string }
  | { readonly kind: 'system'; readonly code: string; readonly label: string }
  | { readonly kind: 'ssh_key'; readonly key_id: string; readonly fingerprint: string; readonly label: string | null }
