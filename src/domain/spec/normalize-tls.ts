import { createPrivateKey, X509Certificate } from 'node:crypto'
import { isIP } from 'node:net'
import { CACHED_CERTIFICATES_MAX, CERTIFICATE_HOURS_MAX, PEM_MAX_CHARS } from '../requests/request-bounds.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import type { TlsInput } from './spec-input.ts'
import { DEFAULT_INTERCEPTION, type TlsInterception } from './tls-interception.ts'

const DNS_PORT = 53
const NAME = /^(?=.{1,253}$)(?:[a-z0-9_](?:[a-z0-9_-]{0,62})\.)*[a-z0-9_](?:[a-z0-9_-]{0,62})$/
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g
const AT = 'network.tls'

/** The interception of a create body: what is stored and shown, and the key of a given authority, which is stored sealed. */
export type NormalizedTls = { readonly tls: TlsInterception | null; readonly key: string | null }

/**
 * Normalizes `network.tls`. The published API has paths of files with certificates, which the server can't read on the
 * client's machine. Each such field takes the text of the file.
 */
export function normalizeTls(
  input: TlsInput | null,
  { hasSecrets, refuse }: { readonly hasSecrets: boolean; readonly refuse: Refuse },
): NormalizedTls {
  if (input?.enabled !== true) {
    refuseUnclear(input ?? {}, { hasSecrets, refuse })
    return { tls: null, key: null }
  }
  const authority = normalizeAuthority(input.intercept_ca ?? {}, refuse)
  const defaults = DEFAULT_INTERCEPTION
  const pattern = (value: string, field: string): string => normalizePattern(value, `${AT}.${field}`, refuse)
  const certificate = (value: string, field: string): string => requireCertificates(value, `${AT}.${field}`, refuse)
  const tls: TlsInterception = {
    intercepted_ports: normalizePorts(input.intercepted_ports ?? defaults.intercepted_ports, refuse),
    bypass: (input.bypass ?? []).map((value, index) => pattern(value, `bypass[${String(index)}]`)),
    block_quic_on_intercept: input.block_quic_on_intercept ?? defaults.block_quic_on_intercept,
    verify_upstream: input.verify_upstream ?? defaults.verify_upstream,
    scoped_verify_upstream: (input.scoped_verify_upstream ?? []).map((scoped, index) => ({
      pattern: pattern(scoped.pattern, `scoped_verify_upstream[${String(index)}].pattern`),
      verify: scoped.verify,
    })),
    upstream_ca_certs: (input.upstream_ca_cert ?? []).map((value, index) =>
      certificate(value, `upstream_ca_cert[${String(index)}]`),
    ),
    scoped_upstream_ca_certs: (input.scoped_upstream_ca_cert ?? []).map((scoped, index) => ({
      pattern: pattern(scoped.pattern, `scoped_upstream_ca_cert[${String(index)}].pattern`),
      certificate: certificate(scoped.path, `scoped_upstream_ca_cert[${String(index)}].path`),
    })),
    cache: normalizeCache({ ...defaults.cache, ...input.cache }, refuse),
    intercept_ca_cert: authority?.certificate ?? null,
  }
  return { tls, key: authority?.key ?? null }
}

/** Interception that is off has no options, and secrets can't work without it. */
function refuseUnclear(
  { enabled, ...options }: TlsInput,
  { hasSecrets, refuse }: { readonly hasSecrets: boolean; readonly refuse: Refuse },
): void {
  const field = `${AT}.enabled`
  if (enabled === undefined && Object.keys(options).length > 0)
    refuse({ code: 'invalid_request', field, seen: 'nothing', accepted: 'true or false beside other members of tls' })
  if (enabled === false && hasSecrets) {
    const accepted = 'true, or no network.tls, because the values of secrets are put into requests inside TLS'
    refuse({ code: 'invalid_sandbox_config', field, seen: 'false beside network.secrets', accepted })
  }
}

function normalizePorts(ports: readonly number[], refuse: Refuse): readonly number[] {
  const field = `${AT}.intercepted_ports`
  const isUsable = (port: number): boolean => port >= 1 && port <= 65_535 && port !== DNS_PORT
  if (ports.length === 0 || !ports.every(isUsable)) {
    const accepted = 'at least one port from 1 to 65535, except 53, which is DNS'
    refuse({ code: 'invalid_request', field, seen: describeSeen(ports), accepted })
  }
  return [...new Set(ports)].toSorted((one, other) => one - other)
}

function normalizePattern(value: string, field: string, refuse: Refuse): string {
  const pattern = value.toLowerCase().replace(/\.$/, '')
  const isPattern = isIP(pattern) !== 0 || NAME.test(pattern.replace(/^\*\./, ''))
  if (!isPattern) {
    const accepted = 'a host, such as api.example.com, or *. and a name, such as *.example.com'
    refuse({ code: 'invalid_request', field, seen: describeSeen(value), accepted })
  }
  return pattern
}

function normalizeCache(cache: TlsInterception['cache'], refuse: Refuse): TlsInterception['cache'] {
  const bounds = { capacity: [0, CACHED_CERTIFICATES_MAX], validity_hours: [1, CERTIFICATE_HOURS_MAX] } as const
  for (const key of ['capacity', 'validity_hours'] as const) {
    const [least, most] = bounds[key]
    if (cache[key] >= least && cache[key] <= most) continue
    const accepted = `${String(least)} to ${String(most)}`
    refuse({ code: 'invalid_request', field: `${AT}.cache.${key}`, seen: String(cache[key]), accepted })
  }
  return { capacity: cache.capacity, validity_hours: cache.validity_hours }
}

function normalizeAuthority(input: NonNullable<TlsInput['intercept_ca']>, refuse: Refuse) {
  const { cert_path, key_path } = input
  const [certificate, key] = [cert_path ?? '', key_path ?? '']
  if (certificate === '' && key === '') return null
  const field = `${AT}.intercept_ca`
  const seen = certificate === '' ? 'a key without a certificate' : 'a certificate without a key'
  if (certificate === '' || key === '') {
    refuse({ code: 'invalid_request', field, seen, accepted: 'both cert_path and key_path, or neither' })
    return null
  }
  const first = requireCertificates(certificate, `${field}.cert_path`, refuse)
  const problem = authorityProblem(first, key)
  if (problem !== null) refuse({ code: 'invalid_request', field: `${field}.${problem.member}`, ...problem })
  return { certificate: first, key }
}

/** Why a certificate and a key can't sign certificates of hosts. The key is never repeated. */
function authorityProblem(certificate: string, key: string) {
  const parsed = parseOr(() => new X509Certificate(certificate))
  if (parsed === null) return null // refused before
  const cert = { member: 'cert_path', seen: 'a certificate that is not an authority’s' }
  if (!parsed.ca) return { ...cert, accepted: 'the certificate of an authority (basicConstraints CA:TRUE)' }
  const parsedKey = parseOr(() => createPrivateKey(key))
  const accepted = 'the text of a PEM file with the RSA, P-256 or P-384 key of the certificate, without a passphrase'
  if (parsedKey === null) return { member: 'key_path', seen: 'a text that is no private key in PEM', accepted }
  const { asymmetricKeyType: type, asymmetricKeyDetails: details } = parsedKey
  const isUsable = type === 'rsa' || ['prime256v1', 'secp384r1'].includes(details?.namedCurve ?? '')
  if (!isUsable) return { member: 'key_path', seen: `a key of type ${type ?? 'unknown'}`, accepted }
  if (!parsed.checkPrivateKey(parsedKey))
    return { member: 'key_path', seen: 'the key of another certificate', accepted }
  return null
}

/** Returns the certificates of a PEM text, without what is between them. */
function requireCertificates(text: string, field: string, refuse: Refuse): string {
  const found = text.length > PEM_MAX_CHARS ? [] : (text.match(CERTIFICATE) ?? [])
  const isValid = found.length > 0 && found.every((one) => parseOr(() => new X509Certificate(one)) !== null)
  if (!isValid) {
    const accepted = `the text of a PEM file with certificates, of at most ${String(PEM_MAX_CHARS)} characters, because the server can't read files of your machine`
    const isShown = /^[^\n-]{1,80}$/.test(text) // never a key in the wrong field
    refuse({ code: 'invalid_request', field, seen: isShown ? describeSeen(text) : 'another text', accepted })
  }
  return found.map((one) => `${one}\n`).join('')
}

function parseOr<Parsed>(parse: () => Parsed): Parsed | null {
  try {
    return parse()
  } catch {
    return null
  }
}
