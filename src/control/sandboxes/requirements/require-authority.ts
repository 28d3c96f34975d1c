import { X509Certificate } from 'node:crypto'
import { refusalProblem } from '../../../domain/refusal.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { BaseDeps } from '../../deps.ts'

/** Throws `invalid_sandbox_config` if the certificate authority of a request has expired, because no program would trust it. */
export function requireValidAuthority({ clock }: Pick<BaseDeps, 'clock'>, { network }: SandboxSpec): void {
  const certificate = network.tls?.intercept_ca_cert ?? null
  if (certificate === null) return
  const { validFromDate, validToDate } = new X509Certificate(certificate)
  const now = clock.now()
  if (validFromDate <= now && now < validToDate) return
  throw refusalProblem({
    code: 'invalid_sandbox_config',
    field: 'network.tls.intercept_ca.cert_path',
    seen: `valid from ${validFromDate.toISOString()} to ${validToDate.toISOString()}`,
    accepted: 'a certificate that is valid now',
  })
}
