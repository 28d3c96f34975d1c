import type { RunSecret } from '../spec/secrets.ts'

/** A certificate authority in PEM. Its key must never be logged, shown, or stored in the clear. */
export type CertificateAuthority = { readonly certificate: string; readonly key: string }

/** How the TLS connections of a run are intercepted. Has the key of an authority: never log or store it. */
export type RunInterception = {
  readonly intercepted_ports: readonly number[]
  /** Hosts whose connections pass unread: exact names, or `*.example.com`, which also matches `example.com`. In lower case. */
  readonly bypass: readonly string[]
  /** Whether UDP to the intercepted ports is dropped, so that programs use TLS over TCP. */
  readonly block_quic: boolean
  readonly verify_upstream: boolean
  /** A later entry wins over an earlier one. */
  readonly scoped_verify_upstream: readonly { readonly pattern: string; readonly verify: boolean }[]
  /** Certificates in PEM that are trusted beside the usual ones. */
  readonly upstream_ca_certs: readonly string[]
  readonly scoped_upstream_ca_certs: readonly { readonly pattern: string; readonly certificate: string }[]
  readonly cache: { readonly capacity: number; readonly validity_hours: number }
  /** In PEM. The sandbox trusts the certificate. */
  readonly authority: CertificateAuthority
}

/** What a worker needs to put secrets into the connections of a run, and to read these. Never on its disk or in a log. */
export type EgressSecrets = {
  readonly secrets: readonly RunSecret[]
  /** Null: TLS passes unread. */
  readonly interception: RunInterception | null
}

export const NO_EGRESS_SECRETS: EgressSecrets = { secrets: [], interception: null }
