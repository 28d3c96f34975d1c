import { X509Certificate, type KeyObject } from 'node:crypto'
import { rename, writeFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import type { Clock } from '../../../lib/clock.ts'
import { readFileOrNull } from '../../../lib/files.ts'
import type { Random } from '../../../lib/random.ts'
import { makeSelfSignedCertificate } from '../../../lib/self-signed-certificate.ts'

/** Older than any clock that is wrong by hours. */
const BACKDATED_MS = 24 * 3_600_000
/** Clients get the new file within this time. */
const RENEW_BEFORE_MS = 90 * 24 * 3_600_000

export type StoredCertificateDeps = { readonly clock: Pick<Clock, 'now'>; readonly random: Pick<Random, 'bytes'> }

type Wanted = {
  /** The file with the certificate. It has no secret: clients may trust it. */
  readonly file: string
  readonly key: KeyObject
  /** The names and addresses of a new certificate. */
  readonly names: readonly string[]
  /** Those that a stored certificate must have. */
  readonly required: readonly string[]
  readonly validMs: number
}

/**
 * Reads the stored certificate of a key, or makes it. Clients have copies of the file, so it stays the same while its
 * names fit and it is valid for long enough. `isNew`: clients must get the file. If processes make it at once, the last
 * one stays, and each reads it at its next call.
 */
export async function readStoredCertificate(
  { clock, random }: StoredCertificateDeps,
  { file, key, names, required, validMs }: Wanted,
): Promise<{ readonly cert: string; readonly isNew: boolean }> {
  const nowMs = clock.now().getTime()
  const stored = await readFileOrNull(file)
  if (stored !== null && fits(stored, { key, required, nowMs })) return { cert: stored, isNew: false }
  const cert = makeSelfSignedCertificate({
    key,
    names,
    from: new Date(nowMs - BACKDATED_MS),
    until: new Date(nowMs + validMs),
    serial: random.bytes(15),
  })
  const fresh = `${file}.${random.bytes(8).toString('hex')}`
  await writeFile(fresh, cert, { mode: 0o644, flush: true })
  await rename(fresh, file)
  return { cert, isNew: true }
}

type Use = Pick<Wanted, 'key' | 'required'> & { readonly nowMs: number }

/** Whether a stored certificate is for the key and the names, and for long enough. A file that is no certificate is not. */
function fits(pem: string, { key, required, nowMs }: Use): boolean {
  try {
    const certificate = new X509Certificate(pem)
    const isFor = (name: string): boolean =>
      (isIP(name) === 0 ? certificate.checkHost(name) : certificate.checkIP(name)) !== undefined
    const isValid =
      Date.parse(certificate.validFrom) <= nowMs && nowMs < Date.parse(certificate.validTo) - RENEW_BEFORE_MS
    return isValid && certificate.checkPrivateKey(key) && required.every(isFor)
  } catch {
    return false
  }
}
