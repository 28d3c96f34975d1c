import { createPublicKey, verify } from 'node:crypto'
import ssh2 from 'ssh2'
import { parseSshKey } from '../domain/orgs/ssh-key.ts'

/** The digests of signatures. Ed25519 has its own. RSA with SHA-1 is refused. */
const DIGESTS: ReadonlyMap<string, string | null> = new Map([
  ['ssh-ed25519', null],
  ['ecdsa-sha2-nistp256', 'sha256'],
  ['ecdsa-sha2-nistp384', 'sha384'],
  ['ecdsa-sha2-nistp521', 'sha512'],
  ['rsa-sha2-256', 'sha256'],
  ['rsa-sha2-512', 'sha512'],
])
/** The bytes of each of the two integers of a signature. */
const INTEGER_BYTES: ReadonlyMap<string, number> = new Map([
  ['ecdsa-sha2-nistp256', 32],
  ['ecdsa-sha2-nistp384', 48],
  ['ecdsa-sha2-nistp521', 66],
])

/** Checks a signature in the encoding of SSH: its algorithm and its bytes. `line` is the type and the base64 of the key. */
export function verifySshSignature(line: string, data: Buffer, signature: Buffer): boolean {
  const [name, bytes, rest] = stringsOf(signature)
  const algorithm = name?.toString('latin1') ?? ''
  const type = algorithm.startsWith('rsa-sha2-') ? 'ssh-rsa' : algorithm
  const digest = DIGESTS.get(algorithm)
  const parsed = ssh2.utils.parseKey(line)
  if (digest === undefined || bytes === undefined || rest !== undefined) return false
  if (parsed instanceof Error || parsed.type !== type || parseSshKey(line) === null) return false
  const plain = INTEGER_BYTES.has(type) ? pairOf(bytes, INTEGER_BYTES.get(type) ?? 0) : bytes
  if (plain === null) return false
  const key = createPublicKey(parsed.getPublicPEM())
  return verify(digest, data, INTEGER_BYTES.has(type) ? { key, dsaEncoding: 'ieee-p1363' } : key, plain)
}

/** The two integers of an ECDSA signature, each with a fixed length, as the verification takes them. */
function pairOf(bytes: Buffer, length: number): Buffer | null {
  const integers = stringsOf(bytes).map((integer) => integer.subarray(integer.findIndex((byte) => byte !== 0)))
  if (integers.length !== 2 || integers.some((integer) => integer.length > length)) return null
  return Buffer.concat(integers.map((integer) => Buffer.concat([Buffer.alloc(length - integer.length), integer])))
}

function stringsOf(bytes: Buffer): readonly Buffer[] {
  const strings: Buffer[] = []
  for (let at = 0; at + 4 <= bytes.length;) {
    const end = at + 4 + bytes.readUInt32BE(at)
    if (end > bytes.length) return []
    strings.push(bytes.subarray(at + 4, end))
    at = end
  }
  return strings
}
