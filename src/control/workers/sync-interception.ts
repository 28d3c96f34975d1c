/** The interception of TLS in the answer to a worker. */
import type { DesiredRun } from '../../contract/workers/worker-protocol.ts'
import type { CertificateAuthority } from '../../domain/network/interception.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import { DEFAULT_INTERCEPTION, interceptionOf } from '../../domain/spec/tls-interception.ts'
import { UnsealError } from '../../lib/seal.ts'
import type { RunAssignment } from '../../store/sandboxes/runs.ts'
import { authorityOfRun, type AuthorityDeps } from '../orgs/intercept-authorities.ts'
import { openInterceptKey } from '../sandboxes/seal-secrets.ts'

/**
 * How the TLS connections of a run that must run are intercepted, if anything asks for it: its specification, or secrets that
 * it keeps from an earlier one. Null: the key can't be unsealed, which is logged. The worker then doesn't start the run.
 */
export async function interceptionOfRun(
  deps: AuthorityDeps,
  run: RunAssignment & { readonly spec: Pick<SandboxSpec, 'network'> },
  { secrets = null }: Pick<DesiredRun, 'secrets'>,
): Promise<DesiredRun['interception']> {
  const { network } = run.spec
  const keepsSecrets = network.enabled && (secrets ?? []).length > 0
  const asked = interceptionOf(network) ?? (keepsSecrets ? DEFAULT_INTERCEPTION : null)
  if (asked === null || run.status === 'stopping') return undefined
  const { intercept_ca_cert: certificate, block_quic_on_intercept: block_quic, ...same } = asked
  const authority =
    certificate === null ? await authorityOfRun(deps, run) : givenAuthority(deps, { ...run, certificate })
  return authority === null ? null : { ...same, block_quic, authority }
}

type Given = Pick<RunAssignment, 'sandbox_id' | 'tls_key_sealed'> & { readonly certificate: string }

function givenAuthority(
  deps: AuthorityDeps,
  { sandbox_id, tls_key_sealed: sealed, certificate }: Given,
): CertificateAuthority | null {
  if (sealed === null) return null
  try {
    return { certificate, key: openInterceptKey(deps.seal, sandbox_id, sealed) }
  } catch (error) {
    if (!(error instanceof UnsealError)) throw error
    deps.log.error({ error, sandbox_id }, 'the key of a certificate authority could not be unsealed')
    return null
  }
}
