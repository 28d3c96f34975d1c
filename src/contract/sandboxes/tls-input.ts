import { Type } from 'typebox'
import {
  CA_CERTIFICATES_MAX,
  CACHED_CERTIFICATES_MAX,
  CERTIFICATE_HOURS_MAX,
  HOSTS_MAX,
  INTERCEPTED_PORTS_MAX,
  PEM_MAX_CHARS,
} from '../../domain/requests/request-bounds.ts'
import { int32, int64, nullable, requestObject } from '../common.ts'

/** The schemas of TLS interception in requests. */

const flag = Type.Optional(Type.Boolean())
const Pem = Type.String({ maxLength: PEM_MAX_CHARS })

const ScopedCertificateInput = requestObject(
  { pattern: Type.String(), path: Pem },
  { title: 'ScopedUpstreamCaCertInput', description: 'Certificates that servers of some hosts may have.' },
)

const ScopedVerifyInput = requestObject(
  { pattern: Type.String(), verify: Type.Boolean() },
  { title: 'ScopedVerifyUpstreamInput', description: 'Whether the certificates of some hosts are verified.' },
)

export const TlsInput = requestObject(
  {
    enabled: flag,
    intercepted_ports: Type.Optional(Type.Array(int32(), { maxItems: INTERCEPTED_PORTS_MAX })),
    bypass: Type.Optional(Type.Array(Type.String(), { maxItems: HOSTS_MAX })),
    block_quic_on_intercept: flag,
    verify_upstream: flag,
    upstream_ca_cert: Type.Optional(Type.Array(Pem, { maxItems: CA_CERTIFICATES_MAX })),
    scoped_upstream_ca_cert: Type.Optional(Type.Array(ScopedCertificateInput, { maxItems: CA_CERTIFICATES_MAX })),
    scoped_verify_upstream: Type.Optional(Type.Array(ScopedVerifyInput, { maxItems: HOSTS_MAX })),
    cache: Type.Optional(
      requestObject(
        {
          capacity: Type.Optional(int64({ maximum: CACHED_CERTIFICATES_MAX })),
          validity_hours: Type.Optional(int64({ minimum: 1, maximum: CERTIFICATE_HOURS_MAX })),
        },
        { title: 'CertificateCacheInput', description: 'The certificates that the interception makes.' },
      ),
    ),
    intercept_ca: Type.Optional(
      requestObject(
        { cert_path: Type.Optional(nullable(Pem)), key_path: Type.Optional(nullable(Pem)) },
        {
          title: 'InterceptCaInput',
          description:
            'The authority that signs the certificates that the sandbox sees. Absent: that of the organization.',
        },
      ),
    ),
  },
  {
    title: 'TlsInput',
    description:
      'Interception of TLS connections. The sandbox trusts the authority whose certificates it sees. Certificates and keys are the texts of PEM files.',
  },
)
