import { createHash } from 'node:crypto'

/** The types of public keys that may be added. All but RSA have a fixed strength. */
export const SSH_KEY_TYPES = [
  'ssh-ed25519',
  'ecdsa-sha2-nistp256',
  'ecdsa-sha2-nistp384',
  'ecdsa-sha2-nistp521',
  'ssh-rsa',
] as const

const RSA_MIN_BITS = 2048
/** An RSA key of 16,384 bits has 2,800 characters. */
export const SSH_KEY_LINE_MAX_CHARS = 8 * 1024

/** Describes an accepted public key. */
export const SSH_KEY_RULE = `one line of an OpenSSH public key file, such as ~/.ssh/id_ed25519.pub, of the type ${SSH_KEY_TYPES.join(', ')}; RSA with at least ${String(RSA_MIN_BITS)} bits; the word cert-authority before it makes it an authority, whose certificates open connections`

/** Before the key of an authority, as in OpenSSH's `authorized_keys`. Its certificates are accepted, and the key itself is not. */
export const AUTHORITY_WORD = 'cert-authority'

/** `text` is the type and the base64 of the key, without a comment. */
export type SshPublicKey = { readonly text: string; readonly fingerprint: string }

/** Parses a line of an OpenSSH public key file. Null for anything else, such as a private key or a line with options. */
export function parseSshKey(line: string): SshPublicKey | null {
  if (line.length > SSH_KEY_LINE_MAX_CHARS) return null
  const [type = '', base64 = ''] = line.trim().split(/[ \t]+/)
  if (!SSH_KEY_TYPES.some((known) => known === type) || /[\r\n]/.test(line.trim())) return null
  const blob = Buffer.from(base64, 'base64')
  if (blob.toString('base64') !== base64) return null
  const parts = readStrings(blob)
  if (parts?.[0]?.toString('latin1') !== type || parts.length < 2) return null
  if (type === 'ssh-rsa' && (parts[2] === undefined || bitsOf(parts[2]) < RSA_MIN_BITS)) return null
  if (type === 'ssh-ed25519' && parts[1]?.length !== 32) return null
  return { text: `${type} ${base64}`, fingerprint: sshFingerprint(blob) }
}

/** Parses a line that may begin with `cert-authority`, which `text` then does too. Null for anything else. */
export function parseSshKeyLine(line: string): SshPublicKey | null {
  const [, rest] = /^\s*cert-authority[ \t]+(.*)$/s.exec(line) ?? []
  if (rest === undefined) return parseSshKey(line)
  const key = parseSshKey(rest)
  return key === null ? null : { ...key, text: `${AUTHORITY_WORD} ${key.text}` }
}

/** The fingerprint of an encoded public key, as `ssh-keygen -l` prints it. */
export function sshFingerprint(blob: Buffer): string {
  return `SHA256:${createHash('sha256').update(blob).digest('base64').replace(/=+$/, '')}`
}

/** The strings of an SSH encoding (RFC 4251, section 5). Null when the bytes are not a sequence of strings. */
function readStrings(blob: Buffer): readonly Buffer[] | null {
  const strings: Buffer[] = []
  for (let at = 0; at < blob.length;) {
    if (at + 4 > blob.length) return null
    const end = at + 4 + blob.readUInt32BE(at)
    if (end > blob.length) return null
    strings.push(blob.subarray(at + 4, end))
    at = end
  }
  return strings
}

/** The bits of a positive integer, which begins with a zero byte when its highest bit is set. */
function bitsOf(integer: Buffer): number {
  const start = integer.findIndex((byte) => byte !== 0)
  return start === -1 ? 0 : (integer.length - start) * 8 - Math.clz32(integer[start] ?? 0) + 24
}
