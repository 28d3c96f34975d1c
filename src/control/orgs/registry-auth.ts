import { parseImageReference } from '../../domain/spec/image-reference.ts'
import { asId, type CredentialId, type OrgId } from '../../domain/ids.ts'
import * as credentials from '../../store/orgs/credentials.ts'
import type { RunAssignment } from '../../store/sandboxes/runs.ts'
import type { BaseDeps, RegistryDeps } from '../deps.ts'

/** A name and password for one registry. */
export type RegistryAuth = { readonly username: string; readonly password: string }

/** What the sealed password of a create body is bound to. */
export function inlinePasswordSealContext(sandbox: string): string {
  return `sandbox-registry:${sandbox}`
}

/** What a sealed credential's password is bound to. */
export function credentialSealContext(org: OrgId, host: string): string {
  return `registry-credential:${org}:${host}`
}

/** Credentials that are looked up for several runs of one moment: each is asked for once. */
export type CredentialLookups = Map<string, Promise<credentials.SealedCredential | null>>

/**
 * The credential that a run's pull presents, or null for none: what the create body gave, the credential it named, or
 * with `auto` the organization's credential for the image's registry. `found` is shared by the runs of one moment.
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
  // In no turn of the organization: while it keeps its own connections busy, the worker has orders of others to hear of.
  const looking =
    found.get(key) ??
    deps.db.asSystem((q) =>
      registry.mode === 'specific'
        ? credentials.find(q, org_id, asId<CredentialId>(registry.credential_id))
        : credentials.findByHost(q, org_id, host),
    )
  found.set(key, looking)
  const credential = await looking
  // A credential is shown to its own registry alone, whatever a request says.
  if (credential === null || credential.host !== host) return null
  return {
    username: credential.username,
    password: deps.seal.open(credential.password_sealed, credentialSealContext(org_id, host)),
  }
}

/** The host that an image is pulled from; empty for a reference that can't be read. */
export function registryHostOf(image: string, defaultRegistry: string): string {
  const parsed = parseImageReference(image, defaultRegistry)
  return parsed.ok ? parsed.reference.registry : ''
}
