import { parseImageReference } from '../../domain/spec/image-reference.ts'
import { asId, type CredentialId, type OrgId } from '../../domain/ids.ts'
import * as credentials from '../../store/orgs/credentials.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import type { RunAssignment } from '../../store/sandboxes/runs.ts'
import type { BaseDeps, DefaultRegistryDeps } from '../deps.ts'

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

type RunWithImage = Pick<
  RunAssignment,
  'org_id' | 'sandbox_id' | 'registry' | 'registry_sealed' | 'has_credentials'
> & {
  readonly spec: Pick<SandboxSpec, 'image'>
}

/**
 * Finds the credential for pulling a run's image. It is the credential in the create body, or the stored one that the
 * body names. With `auto`, it is the organization's credential for the image's registry. Resolves with null if there is
 * none. All runs in one sync answer share `found`.
 */
export async function findRegistryAuth(
  deps: Pick<BaseDeps, 'db' | 'seal'> & DefaultRegistryDeps,
  assignment: RunWithImage,
  found: CredentialLookups = new Map(),
): Promise<RegistryAuth | null> {
  const { registry, org_id } = assignment
  if (registry.mode === 'anonymous') return null
  if (registry.mode === 'inline') {
    if (assignment.registry_sealed === null) return null
    const password = deps.seal.open(assignment.registry_sealed, inlinePasswordSealContext(assignment.sandbox_id))
    return { username: registry.username, password }
  }
  if (!assignment.has_credentials) return null
  const host = registryHostOf(assignment.spec.image, deps.settings.defaultRegistry)
  const key = `${org_id} ${registry.mode === 'specific' ? registry.credential_id : host}`
  // Uses a connection of the system, not of the organization. The same sync answer contains runs of other
  // organizations, which must not wait while this organization's connections are busy.
  const lookUp =
    found.get(key) ??
    deps.db.asSystem((q) =>
      registry.mode === 'specific'
        ? credentials.findSealed(q, org_id, asId<CredentialId>(registry.credential_id))
        : credentials.findSealedByHost(q, org_id, host),
    )
  found.set(key, lookUp)
  const credential = await lookUp
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
