/** What the specification of a run asks for and does not contain: the credential of its registry, its secrets, and how TLS is intercepted. */
import type { DesiredRun } from '../../contract/workers/worker-protocol.ts'
import type { Ability } from '../../domain/abilities.ts'
import { resolveSecrets } from '../../domain/spec/secrets.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { isUnavailable } from '../../store/postgres/database.ts'
import type { RunAssignment } from '../../store/sandboxes/runs.ts'
import type { ControlSettings } from '../deps.ts'
import type { AuthorityDeps } from '../orgs/intercept-authorities.ts'
import { findRegistryAuth, type CredentialLookups } from '../orgs/registry-auth.ts'
import { openRunSecrets, openSecretValues } from '../sandboxes/seal-secrets.ts'
import { interceptionOfRun } from './sync-interception.ts'

type CredentialsDeps = AuthorityDeps & { readonly settings: Pick<ControlSettings, 'defaultRegistry'> }

type RunWithSpec = RunAssignment & { readonly spec: SandboxSpec }

/** The abilities of specifications that use volumes, secrets or interception. */
const LOOKED_AT: ReadonlySet<string> = new Set<Ability>([
  'named_mounts',
  'bind_mounts',
  'disk_images',
  'secrets',
  'tls_interception',
])

/**
 * Whether the specification of a run may use volumes, or ask for what it does not contain. Otherwise it need not be parsed: large ones take
 * some 10 ms, and small ones took 1 % of a life (2026-11).
 */
export function mayNeedSpec(run: RunAssignment): boolean {
  const { registry_sealed, secrets_sealed, run_secrets_sealed, tls_key_sealed } = run
  const isSealed = [registry_sealed, secrets_sealed, run_secrets_sealed, tls_key_sealed].some((value) => value !== null)
  return isSealed || run.has_credentials || run.secrets_version > 0 || run.abilities.some((one) => LOOKED_AT.has(one))
}

/** What a run gets beside its specification. A run whose specification need not be looked at gets no more than a `registry_auth` of null. */
export async function credentialsOfRun(
  deps: CredentialsDeps,
  run: RunWithSpec,
  lookups: CredentialLookups,
): Promise<Pick<DesiredRun, 'registry_auth' | 'secrets' | 'interception'>> {
  const secrets = secretsOf(deps, run)
  const interception = await interceptionOfRun(deps, run, secrets)
  return {
    // Only a start pulls an image, so no other run gets the secret.
    registry_auth: run.status === 'starting' ? await registryAuthOrNull(deps, run, lookups) : null,
    ...(interception === null ? { secrets: null } : secrets), // values without interception would never be judged
    ...(interception === undefined ? {} : { interception }),
  }
}

/**
 * The secrets of a run that must run, if its sandbox has or had any. Values that can't be unsealed are left out, and the error is
 * logged. The worker then starts the run only once they are given again.
 */
function secretsOf(deps: CredentialsDeps, run: RunWithSpec): Pick<DesiredRun, 'secrets'> {
  const { run_id, spec, secrets_version, run_secrets_sealed: kept } = run
  const hasSecrets = spec.network.secrets.length > 0 || secrets_version > 0 || kept !== null
  if (!hasSecrets || run.status === 'stopping') return {}
  try {
    if (kept !== null) return { secrets: openRunSecrets(deps.seal, run_id, kept) }
    const values = openSecretValues(deps.seal, run.sandbox_id, run.secrets_sealed)
    return { secrets: resolveSecrets(spec.network, values) }
  } catch (error) {
    deps.log.error({ error, sandbox_id: run.sandbox_id }, 'the values of secrets could not be unsealed')
    return { secrets: null }
  }
}

/**
 * The registry credential of a run, or null. A credential that can't be unsealed, for example after a change of the
 * sealing key, is logged and left out. Only the pull that needs it can then fail.
 */
async function registryAuthOrNull(
  deps: CredentialsDeps,
  run: RunWithSpec,
  lookups: CredentialLookups,
): Promise<DesiredRun['registry_auth']> {
  try {
    return await findRegistryAuth(deps, run, lookups)
  } catch (error) {
    if (isUnavailable(error)) throw error
    deps.log.error({ error, sandbox_id: run.sandbox_id }, 'a registry credential could not be unsealed')
    return null
  }
}
