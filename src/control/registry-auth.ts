import { parseImageReference } from '../domain/image-reference.ts'
import { asId, type CredentialId, type OrgId } from '../domain/ids.ts'
import * as credentials from '../store/credentials.ts'
import type { RunOrder } from '../store/runs.ts'
import type { ControlDeps } from './deps.ts'

/** A name and password for one registry. */
export type RegistryAuth = { readonly username: string; readonly password: string }

/** What the sealed password of a create body is bound to. */
export function registrySealContext(sandbox: string): string {
  return `sandbox-registry:${sandbox}`
}

/** What a sealed credential's password is bound to. */
export function credentialSealContext(org: OrgId, host: string): string {
  return `registry-credential:${org}:${host}`
}

/**
 * The credential that a run's pull presents, or null for none: what the create body gave, the credential it named, or
 * with `auto` the organization's credential for the image's registry.
 */
export async function registryAuthOf(
  deps: Pick<ControlDeps, 'db' | 'seal' | 'settings'>,
  order: RunOrder,
): Promise<RegistryAuth | null> {
  const { registry, org_id } = order
  if (registry.mode === 'anonymous') return null
  if (registry.mode === 'inline') {
    if (order.registry_sealed === null) return null
    const password = deps.seal.open(order.registry_sealed, registrySealContext(order.sandbox_id))
    return { username: registry.username, password }
  }
  const host = registryHostOf(order.spec.image, deps.settings.defaultRegistry)
  const found = await deps.db.asOrg(org_id, (q) =>
    registry.mode === 'specific'
      ? credentials.find(q, org_id, asId<CredentialId>(registry.credential_id))
      : credentials.findByHost(q, org_id, host),
  )
  // A credential is shown to its own registry alone, whatever a request says.
  if (found === null || found.host !== host) return null
  return {
    username: found.username,
    password: deps.seal.open(found.password_sealed, credentialSealContext(org_id, host)),
  }
}

/** The host that an image is pulled from; empty for a reference that can't be read. */
export function registryHostOf(image: string, defaultRegistry: string): string {
  const parsed = parseImageReference(image, defaultRegistry)
  return parsed.ok ? parsed.reference.registry : ''
}
