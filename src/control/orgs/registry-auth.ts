import { parseImageReference } from '../../domain/spec/image-reference.ts'
import { asId, type CredentialId, type OrgId } from '../../domain/ids.ts'
import * as credentials from '../../store/orgs/credentials.ts'
import type { RunAssignment } from '../../store/sandboxes/runs.ts'
import type { BaseDeps, RegistryDeps } from '../deps.ts'

/** A name and password for one registry. */
export type RegistryAuth = { readonly username: string; readonly password: string }

/** The seal context of a password from a create body. It ties the password to its sandbox. */
export function inlinePasswordSealContext(sandbox: string): string {
  return `sandbox-registry:${sandbox}`
}

/** The seal context of a stored credential. It ties the credential to its organization and host. */
export function credentialSealContext(org: OrgId, host: string): string {
  return `registry-credential:${org}:${host}`
}

/** Credential look-ups that several runs share. Each credential is looked up once. */
export type CredentialLookups = Map<string, Promise<credentials.SealedCredential | null>>

/**
 * Finds the credential for pulling a run's image. It is the one in the create body, or the stored one that the body
 * names. With `auto`, it is the organization's credential for the image's registry. Null if there is none. All runs in
 * one sync answer share `found`.
 */
export async function findRegistryAuth(
  deps: Pick<BaseDeps, 'db' | 'seal'> & RegistryDeps,
  order: RunAssignment,
  found: CredentialLookups = new Map(),
): Promise<RegistryAuth | null> {
  const { registry, org_id } = order
  if (registry.mode === 'anonymous') return null
  if (registry.mode === 'inline') {
    if (order.registry_sealed === null) return null
    const password = deps.seal.open(order.registry_sealed, inlinePasswordSealContext(order.sandbox_id))
    return { username: registry.username, password }
  }
  const host = registryHostOf(order.spec.image, deps.settings.defaultRegistry)
  const key = `${org_id} ${registry.mode === 'specific' ? registry.credential_id : host}`
  // Does not use the organization's connections. While these are busy, the worker still needs the answers for other
  // organizations.
  const looking =
    found.get(key) ??
    deps.db.asSystem((q) =>
      registry.mode === 'specific'
        ? credentials.findSealed(q, org_id, asId<CredentialId>(registry.credential_id))
        : credentials.findSealedByHost(q, org_id, host),
    )
  found.set(key, looking)
  const credential = await looking
  // A credential is sent to its own registry only, whatever the request says.
  if (credential === null || credential.host !== host) return null
  return {
    username: credential.username,
    password: deps.seal.open(credential.password_sealed, credentialSealContext(org_id, host)),
  }
}

/** The host that an image is pulled from, or an empty string for an invalid reference. */
export function registryHostOf(image: string, defaultRegistry: string): string {
  const parsed = parseImageReference(image, defaultRegistry)
  return parsed.ok ? parsed.reference.registry : ''
}
