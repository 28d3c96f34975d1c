import type { SandboxSpec } from './spec.ts'

/**
 * How the TLS connections of a sandbox are intercepted. Patterns are a host in lower case, or `*.` and a name, which
 * also match the name itself.
 */
export type TlsInterception = {
  /** The TCP ports whose connections are intercepted. */
  readonly intercepted_ports: readonly number[]
  /** Patterns of server names whose connections pass unread. */
  readonly bypass: readonly string[]
  /** Whether UDP to the intercepted ports is dropped, so that clients of HTTP/3 use TCP. */
  readonly block_quic_on_intercept: boolean
  readonly verify_upstream: boolean
  /** The last pattern that matches wins over `verify_upstream`. */
  readonly scoped_verify_upstream: readonly { readonly pattern: string; readonly verify: boolean }[]
  /** Certificates in PEM that servers may have, beside those that the worker trusts. */
  readonly upstream_ca_certs: readonly string[]
  readonly scoped_upstream_ca_certs: readonly { readonly pattern: string; readonly certificate: string }[]
  readonly cache: { readonly capacity: number; readonly validity_hours: number }
  /** The certificate in PEM of the authority that the request gave. Null: that of the organization. */
  readonly intercept_ca_cert: string | null
}

/** What is intercepted if only secrets ask for it. */
export const DEFAULT_INTERCEPTION: TlsInterception = {
  intercepted_ports: [443],
  bypass: [],
  block_quic_on_intercept: true,
  verify_upstream: true,
  scoped_verify_upstream: [],
  upstream_ca_certs: [],
  scoped_upstream_ca_certs: [],
  cache: { capacity: 1000, validity_hours: 24 },
  intercept_ca_cert: null,
}

/** How the connections of a sandbox are intercepted, or null. Secrets need the requests inside TLS. */
export function interceptionOf({ enabled, tls, secrets }: SandboxSpec['network']): TlsInterception | null {
  if (!enabled) return null
  return tls ?? (secrets.length > 0 ? DEFAULT_INTERCEPTION : null)
}
