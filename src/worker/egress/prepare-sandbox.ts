import { matchesHost } from '../../domain/network/host-pattern.ts'
import type { RunInterception } from '../../domain/network/interception.ts'
import type { Clock } from '../../lib/clock.ts'
import { makeTokenBuckets } from '../../lib/turns/token-buckets.ts'
import { openAuthority } from './intercept/certificate-authority.ts'
import { prepareSecrets, type PreparedSecrets } from './placeholders/host-secrets.ts'
import {
  cacheLeafCertificates,
  makeSharedLeaves,
  type LeafCertificates,
  type SharedLeaves,
} from './intercept/leaf-certificates.ts'
import { RequestRefused } from './request-refused.ts'
import { makeUpstreamConnector, type UpstreamConnector } from './intercept/upstream-tls.ts'
import type { EgressSettings } from './messages.ts'

/** A sandbox as its connections are served. */
export type EgressSandbox = Omit<EgressSettings, 'secrets'> & {
  readonly secrets: PreparedSecrets
  readonly tls: {
    readonly certificates: LeafCertificates
    readonly upstream: UpstreamConnector
    /** Whether a TLS connection to a port is read. `host` is its server name, or the destination's address. */
    readonly intercepts: (port: number, host: string) => boolean
  } | null
}

/**
 * How many new names a sandbox may use in a second and at once. Each costs a certificate: 2.8 ms of the thread that serves all sandboxes
 * (2026-11-30, two busy cores).
 */
const NEW_NAMES = { perSec: 20, burst: 256 } as const
/** The most certificates that one sandbox keeps, whatever its settings say: 22 MB (43 KB each, 2026-11-30). */
const CERTIFICATES_MAX = 512
const SANDBOXES_MAX = 65_536

/** Prepares the sandboxes of the process, which are known by their addresses. Those with one authority share its certificates. */
export function makeSandboxPreparer(
  clock: Pick<Clock, 'now' | 'monotonicMs'>,
): (address: string, settings: EgressSettings) => Promise<EgressSandbox> {
  const authorities = new Map<string, WeakRef<SharedLeaves>>()
  const newNames = makeTokenBuckets(NEW_NAMES, SANDBOXES_MAX)

  async function sharedLeavesOf({ authority, cache }: RunInterception): Promise<SharedLeaves> {
    const key = JSON.stringify([authority.certificate, cache.validity_hours])
    const known = authorities.get(key)?.deref()
    if (known !== undefined) return known
    const opened = makeSharedLeaves(await openAuthority(authority))
    for (const [one, reference] of authorities) if (reference.deref() === undefined) authorities.delete(one)
    authorities.set(key, new WeakRef(opened))
    return opened
  }

  function countNewName(address: string): void {
    const nowMs = clock.monotonicMs()
    if (newNames.peek(address, 1, nowMs).remaining < 1)
      throw new RequestRefused('the sandbox uses too many new server names', { isByPolicy: true })
    newNames.take(address, 1, nowMs)
  }

  return async (address, settings) => {
    const { interception } = settings
    const secrets = prepareSecrets(settings.secrets)
    if (interception === null) return { ...settings, secrets, tls: null }
    const { intercepted_ports, bypass, cache } = interception
    const intercepts = (port: number, host: string): boolean =>
      intercepted_ports.includes(port) && !bypass.some((pattern) => isMatch(pattern, host))
    const shared = await sharedLeavesOf(interception)
    const certificates = cacheLeafCertificates({
      sign: shared.sign,
      shared,
      capacity: Math.min(cache.capacity, CERTIFICATES_MAX),
      validityHours: cache.validity_hours,
      now: () => clock.now().getTime(),
      countNew: () => {
        countNewName(address)
      },
    })
    return { ...settings, secrets, tls: { certificates, upstream: makeUpstreamConnector(interception), intercepts } }
  }
}

function isMatch(value: string, host: string): boolean {
  return matchesHost({ type: value.startsWith('*.') ? 'wildcard' : 'exact', value }, host)
}
