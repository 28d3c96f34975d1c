import { matchesHost } from '../../domain/network/host-pattern.ts'
import type { RunInterception } from '../../domain/network/interception.ts'
import { openAuthority } from './intercept/certificate-authority.ts'
import { cacheLeafCertificates, type LeafCertificates } from './intercept/leaf-certificates.ts'
import { makeUpstreamConnector, type UpstreamConnector } from './intercept/upstream-tls.ts'
import type { EgressSettings } from './messages.ts'

/** A sandbox as its connections are served. */
export type EgressSandbox = EgressSettings & {
  readonly tls: {
    readonly certificates: LeafCertificates
    readonly upstream: UpstreamConnector
    /** Whether a TLS connection to a port is read. `host` is its server name, or the destination's address. */
    readonly intercepts: (port: number, host: string) => boolean
  } | null
}

/** Prepares the sandboxes of the process. Those with one authority share its certificates. */
export function makeSandboxPreparer(now: () => number): (settings: EgressSettings) => Promise<EgressSandbox> {
  const shared = new Map<string, WeakRef<LeafCertificates>>()

  async function certificatesOf({ authority, cache }: RunInterception): Promise<LeafCertificates> {
    const key = JSON.stringify([authority.certificate, cache])
    const known = shared.get(key)?.deref()
    if (known !== undefined) return known
    const { capacity, validity_hours: validityHours } = cache
    const certificates = cacheLeafCertificates({ sign: await openAuthority(authority), capacity, validityHours, now })
    for (const [one, reference] of shared) if (reference.deref() === undefined) shared.delete(one)
    shared.set(key, new WeakRef(certificates))
    return certificates
  }

  return async (settings) => {
    const { interception } = settings
    if (interception === null) return { ...settings, tls: null }
    const { intercepted_ports, bypass } = interception
    const intercepts = (port: number, host: string): boolean =>
      intercepted_ports.includes(port) && !bypass.some((pattern) => isMatch(pattern, host))
    const certificates = await certificatesOf(interception)
    return { ...settings, tls: { certificates, upstream: makeUpstreamConnector(interception), intercepts } }
  }
}

function isMatch(value: string, host: string): boolean {
  return matchesHost({ type: value.startsWith('*.') ? 'wildcard' : 'exact', value }, host)
}
