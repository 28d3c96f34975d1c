import { BlockList, isIP } from 'node:net'
import { parseSshKey } from './ssh-key.ts'

/**
 * Certificates of OpenSSH for users (PROTOCOL.certkeys of OpenSSH): what they say, and whether that lets somebody enter. The
 * signatures are checked elsewhere. A certificate that can't be read or that asks for something unknown is no certificate.
 */
export type SshCertificate = {
  /** The certified key, as the text of an `SshPublicKey`. */
  readonly key: string
  /** The public key of the authority, in the encoding of SSH. */
  readonly authority: Buffer
  /** What the authority signed, and its signature in the encoding of SSH. */
  readonly signed: Buffer
  readonly signature: Buffer
  /** A text of the authority that names the certificate. */
  readonly keyId: string
  readonly principals: readonly string[]
  /** Seconds since 1970. `validBefore` is not part of the time. */
  readonly validAfter: bigint
  readonly validBefore: bigint
  /** The addresses from which it may be used. Null: all. */
  readonly sourceAddresses: readonly string[] | null
  readonly permits: SshPermits
}

/** What a connection may do besides commands and files. Plain keys may do all of it. */
export type SshPermits = { readonly pty: boolean; readonly forwarding: boolean; readonly agent: boolean }
export const ALL_SSH_PERMITS: SshPermits = { pty: true, forwarding: true, agent: true }

/** How many fields the public key of a type has, after its name. */
const KEY_FIELDS: ReadonlyMap<string, number> = new Map([
  ['ssh-ed25519', 1],
  ['ecdsa-sha2-nistp256', 2],
  ['ecdsa-sha2-nistp384', 2],
  ['ecdsa-sha2-nistp521', 2],
  ['ssh-rsa', 2],
])
const SUFFIX = '-cert-v01@openssh.com'
const USER_TYPE = 1
const ITEMS_MAX = 256
const KEY_ID_MAX_CHARS = 200

/** Whether an encoded public key is a certificate, which `parseSshCertificate` may still refuse. */
export function isSshCertificate(blob: Buffer): boolean {
  return makeReader(blob).text()?.endsWith(SUFFIX) === true
}

/** Parses a certificate for users. Null for anything else, for another kind of certificate, and for unknown critical options. */
export function parseSshCertificate(blob: Buffer): SshCertificate | null {
  const reader = makeReader(blob)
  const type = reader.text()?.slice(0, -SUFFIX.length) ?? ''
  reader.string() // the nonce
  const keyFields = Array.from({ length: KEY_FIELDS.get(type) ?? 0 }, () => reader.string())
  reader.uint64() // the serial number
  const kind = reader.uint32()
  const keyId = reader.text()
  const principals = listOf(reader.string())
  const [validAfter, validBefore] = [reader.uint64(), reader.uint64()]
  const options = optionsOf(reader.string())
  const extensions = optionsOf(reader.string())
  reader.string() // reserved
  const authority = reader.string()
  const signed = blob.subarray(0, reader.at())
  const signature = reader.string()
  const isWhole = reader.at() === blob.length && keyFields.length > 0 && keyFields.every((field) => field !== null)
  if (!isWhole || kind !== USER_TYPE || authority === null || signature === null) return null
  if (keyId === null || principals === null || options === null || extensions === null) return null
  if (validAfter === null || validBefore === null || options.size > (options.has(SOURCE_OPTION) ? 1 : 0)) return null
  const encoded = Buffer.concat([Buffer.from(type), ...keyFields.filter((field) => field !== null)].map(withLength))
  const key = parseSshKey(`${type} ${encoded.toString('base64')}`)
  const source = options.get(SOURCE_OPTION)
  const sources = source === undefined ? null : (makeReader(source).text() ?? '').split(',')
  if (key === null) return null
  return {
    key: key.text,
    authority,
    signed,
    signature,
    keyId: keyId.replace(/[^\x20-\x7e]/g, '?').slice(0, KEY_ID_MAX_CHARS),
    principals,
    validAfter,
    validBefore,
    sourceAddresses: sources,
    permits: {
      pty: extensions.has('permit-pty'),
      forwarding: extensions.has('permit-port-forwarding'),
      agent: extensions.has('permit-agent-forwarding'),
    },
  }
}

/** The only critical option that is understood: addresses and networks, separated by commas. */
const SOURCE_OPTION = 'source-address'

/**
 * Whether a certificate is valid at a time, for an address, and for at least one of the names. A certificate without principals
 * is for nobody, as in OpenSSH's `authorized_keys`.
 */
export function admitsCertificate(
  { principals, validAfter, validBefore, sourceAddresses }: SshCertificate,
  { now, address, names }: { readonly now: Date; readonly address: string; readonly names: readonly string[] },
): boolean {
  const secs = BigInt(Math.floor(now.getTime() / 1000))
  if (secs < validAfter || secs >= validBefore) return false
  if (sourceAddresses !== null && !isWithin(address, sourceAddresses)) return false
  return principals.some((principal) => names.includes(principal))
}

function isWithin(address: string, ranges: readonly string[]): boolean {
  const plain = /^::ffff:([\d.]+)$/i.exec(address)?.[1] ?? address
  const allowed = new BlockList()
  for (const range of ranges) {
    const [network = '', bits] = range.split('/')
    const family = isIP(network)
    const most = family === 4 ? 32 : 128
    const length = bits === undefined ? most : /^\d{1,3}$/.test(bits) ? Number(bits) : most + 1
    if (family === 0 || length > most) return false // OpenSSH refuses a list with a bad item as a whole
    allowed.addSubnet(network, length, family === 4 ? 'ipv4' : 'ipv6')
  }
  return isIP(plain) !== 0 && allowed.check(plain, isIP(plain) === 4 ? 'ipv4' : 'ipv6')
}

function withLength(bytes: Buffer): Buffer {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(bytes.length)
  return Buffer.concat([length, bytes])
}

function listOf(packed: Buffer | null): readonly string[] | null {
  if (packed === null) return null
  const reader = makeReader(packed)
  const items: string[] = []
  while (reader.at() < packed.length) {
    const item = reader.text()
    if (item === null || items.length >= ITEMS_MAX) return null
    items.push(item)
  }
  return items
}

function optionsOf(packed: Buffer | null): ReadonlyMap<string, Buffer> | null {
  if (packed === null) return null
  const reader = makeReader(packed)
  const options = new Map<string, Buffer>()
  while (reader.at() < packed.length) {
    const [name, data] = [reader.text(), reader.string()]
    if (name === null || data === null || options.size >= ITEMS_MAX) return null
    options.set(name, data)
  }
  return options
}

/** Reads the encoding of RFC 4251, section 5. After the end, everything is null. */
function makeReader(bytes: Buffer) {
  let at = 0
  const take = (count: number): Buffer | null => {
    const end = at + count
    const taken = end > bytes.length ? null : bytes.subarray(at, end)
    at = taken === null ? bytes.length + 1 : end
    return taken
  }
  const uint32 = (): number | null => take(4)?.readUInt32BE(0) ?? null
  const string = (): Buffer | null => {
    const length = uint32()
    return length === null ? null : take(length)
  }
  return {
    at: () => at,
    uint32,
    string,
    uint64: (): bigint | null => take(8)?.readBigUInt64BE(0) ?? null,
    text: (): string | null => string()?.toString('utf8') ?? null,
  }
}
