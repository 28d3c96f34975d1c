import { Type } from 'typebox'
import { int32, int64, nullable } from '../common.ts'

/** The schema of TLS interception in replies. */
export const TlsReply = Type.Object(
  {
    enabled: Type.Boolean(),
    intercepted_ports: Type.Array(int32()),
    bypass: Type.Array(Type.String()),
    block_quic_on_intercept: Type.Boolean(),
    verify_upstream: Type.Boolean(),
    upstream_ca_cert: Type.Array(Type.String()),
    scoped_upstream_ca_cert: Type.Array(
      Type.Object(
        { pattern: Type.String(), path: Type.String() },
        { title: 'ScopedUpstreamCaCert', description: 'Certificates that servers of some hosts may have.' },
      ),
    ),
    scoped_verify_upstream: Type.Array(
      Type.Object(
        { pattern: Type.String(), verify: Type.Boolean() },
        { title: 'ScopedVerifyUpstream', description: 'Whether the certificates of some hosts are verified.' },
      ),
    ),
    cache: Type.Object(
      { capacity: int64(), validity_hours: int64() },
      { title: 'CertificateCache', description: 'The certificates that the interception makes.' },
    ),
    intercept_ca: Type.Object(
      { cert_path: nullable(Type.String()), key_path: nullable(Type.String()) },
      {
        title: 'InterceptCa',
        description: 'The authority that the request gave, without its key. Null: that of the organization.',
      },
    ),
  },
  { title: 'TlsInterception', description: 'How TLS connections are intercepted. Certificates are PEM texts.' },
)
