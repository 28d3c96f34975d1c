import { createHash, createPublicKey, sign, type KeyObject } from 'node:crypto'
import { isIP } from 'node:net'

// Node has no API that creates certificates. This file writes the DER encoding (X.690) of the fields of RFC 5280 that
// a TLS server needs.

export type CertificateRequest = {
  /** A private key on the curve P-256. */
  readonly key: KeyObject
  /** The host names and IP addresses that the certificate is for. */
  readonly names: readonly string[]
  readonly from: Date
  readonly until: Date
  /** At least 8 random bytes. */
  readonly serial: Buffer
}

/** Creates a certificate for a TLS server, signed with its own key, in PEM. It can't sign other certificates. */
export function makeSelfSignedCertificate({ key, names, from, until, serial }: CertificateRequest): string {
  const algorithm = sequence(ECDSA_WITH_SHA256)
  const name = sequence(der(SET, sequence(COMMON_NAME, der(UTF8_STRING, Buffer.from('sandyard')))))
  const extensions = [
    extension(BASIC_CONSTRAINTS, 'critical', sequence()), // the default: not a certificate authority
    extension(KEY_USAGE, 'critical', der(BIT_STRING, Buffer.from([7, 0x80]))), // digitalSignature
    extension(EXTENDED_KEY_USAGE, 'optional', sequence(SERVER_AUTHENTICATION)),
    extension(SUBJECT_ALTERNATIVE_NAME, 'optional', sequence(...names.map(alternativeName))),
  ]
  const signed = sequence(
    der(CONTEXT_0, der(INTEGER, Buffer.from([2]))), // version 3
    der(INTEGER, Buffer.concat([Buffer.from([0x01]), serial])), // the first byte keeps it positive and of full length
    algorithm,
    name,
    sequence(time(from), time(until)),
    name,
    createPublicKey(key).export({ type: 'spki', format: 'der' }),
    der(CONTEXT_3, sequence(...extensions)),
  )
  const signature = der(BIT_STRING, Buffer.from([0]), sign('sha256', signed, key))
  const base64 = sequence(signed, algorithm, signature).toString('base64')
  return `-----BEGIN CERTIFICATE-----\n${base64.replaceAll(/.{1,64}/g, '$&\n')}-----END CERTIFICATE-----\n`
}

/** The SHA-256 of a public key in its standard encoding (SubjectPublicKeyInfo), in hex. All certificates of a key share it. */
export function publicKeyFingerprint(key: KeyObject): string {
  return createHash('sha256')
    .update(key.export({ type: 'spki', format: 'der' }))
    .digest('hex')
}

// Tags of X.690, section 8.
const BOOLEAN = 0x01
const INTEGER = 0x02
const BIT_STRING = 0x03
const OCTET_STRING = 0x04
const OBJECT_ID = 0x06
const UTF8_STRING = 0x0c
const GENERALIZED_TIME = 0x18
const UTC_TIME = 0x17
const SEQUENCE = 0x30
const SET = 0x31
const CONTEXT_0 = 0xa0
const CONTEXT_3 = 0xa3
/** The tags of a name and of an address in `SubjectAltName` (RFC 5280, 4.2.1.6). */
const DNS_NAME = 0x82
const IP_ADDRESS = 0x87

const ECDSA_WITH_SHA256 = objectId('2a8648ce3d040302') // 1.2.840.10045.4.3.2
const COMMON_NAME = objectId('550403') // 2.5.4.3
const KEY_USAGE = objectId('551d0f') // 2.5.29.15
const SUBJECT_ALTERNATIVE_NAME = objectId('551d11') // 2.5.29.17
const BASIC_CONSTRAINTS = objectId('551d13') // 2.5.29.19
const EXTENDED_KEY_USAGE = objectId('551d25') // 2.5.29.37
const SERVER_AUTHENTICATION = objectId('2b06010505070301') // 1.3.6.1.5.5.7.3.1

function der(tag: number, ...parts: readonly Buffer[]): Buffer {
  const content = Buffer.concat(parts)
  return Buffer.concat([Buffer.from([tag]), lengthOf(content), content])
}

function lengthOf({ length }: Buffer): Buffer {
  if (length < 0x80) return Buffer.from([length])
  const hex = length.toString(16)
  const bytes = Buffer.from(hex.padStart(hex.length + (hex.length % 2), '0'), 'hex')
  return Buffer.concat([Buffer.from([0x80 | bytes.length]), bytes])
}

function sequence(...parts: readonly Buffer[]): Buffer {
  return der(SEQUENCE, ...parts)
}

function objectId(hex: string): Buffer {
  return der(OBJECT_ID, Buffer.from(hex, 'hex'))
}

function extension(id: Buffer, kind: 'critical' | 'optional', value: Buffer): Buffer {
  const critical = kind === 'critical' ? [der(BOOLEAN, Buffer.from([0xff]))] : []
  return sequence(id, ...critical, der(OCTET_STRING, value))
}

/** A time without fractions of a second, as RFC 5280, section 4.1.2.5 demands: UTCTime until 2049, then GeneralizedTime. */
function time(at: Date): Buffer {
  const digits = `${at.toISOString().replaceAll(/\D/g, '').slice(0, 14)}Z`
  return at.getUTCFullYear() < 2050
    ? der(UTC_TIME, Buffer.from(digits.slice(2)))
    : der(GENERALIZED_TIME, Buffer.from(digits))
}

function alternativeName(name: string): Buffer {
  return isIP(name) === 0 ? der(DNS_NAME, Buffer.from(name)) : der(IP_ADDRESS, addressBytes(name))
}

function addressBytes(address: string): Buffer {
  if (isIP(address) === 4) return Buffer.from(address.split('.').map(Number))
  // The URL parser writes every IPv6 address in one form, without dots.
  const [head = '', tail] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::')
  const groups = (text: string): readonly string[] => (text === '' ? [] : text.split(':'))
  const [before, after] = [groups(head), tail === undefined ? [] : groups(tail)]
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => '0')
  return Buffer.from([...before, ...zeros, ...after].map((group) => group.padStart(4, '0')).join(''), 'hex')
}
