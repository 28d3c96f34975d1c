import { createPrivateKey, generateKeyPairSync, X509Certificate, type KeyObject } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { readFileOrNull } from '../../lib/files.ts'
import type { Random } from '../../lib/random.ts'
import { makeSelfSignedCertificate } from '../../lib/self-signed-certificate.ts'
import type { TlsPair } from '../server/tls-identity.ts'

/** Older than any clock that is wrong by hours. */
const BACKDATED_MS = 24 * 3_600_000
const VALID_MS = 3_650 * 24 * 3_600_000
const RENEW_BEFORE_MS = 90 * 24 * 3_600_000

/**
 * Reads the worker's own certificate for its registry, or makes it. Nodes trust the file, so it stays the same for ten years, unless the
 * name of the registry changes. `isNew`: nodes must get the file.
 */
export async function readRegistryCertificate(
  { clock, random, dir }: { readonly clock: Pick<Clock, 'now'>; readonly random: Random; readonly dir: string },
  host: string,
): Promise<TlsPair & { readonly file: string; readonly isNew: boolean }> {
  const [file, keyFile] = [join(dir, 'certificate.pem'), join(dir, 'key.pem')]
  const nowMs = clock.now().getTime()
  const stored = await readFileOrNull(keyFile)
  const key = stored === null ? makeKey() : createPrivateKey(stored)
  const keyPem = key.export({ type: 'pkcs8', format: 'pem' }).toString()
  if (stored === null) await writeFile(keyFile, keyPem, { mode: 0o600, flush: true })
  const known = await readFileOrNull(file)
  if (known !== null && isUsable(known, { host, key, nowMs })) return { cert: known, key: keyPem, file, isNew: false }
  const cert = makeSelfSignedCertificate({
    key,
    names: [host],
    from: new Date(nowMs - BACKDATED_MS),
    until: new Date(nowMs + VALID_MS),
    serial: random.bytes(15),
  })
  await writeFile(file, cert, { mode: 0o644, flush: true })
  return { cert, key: keyPem, file, isNew: true }
}

function makeKey(): KeyObject {
  return generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
}

type Use = { readonly host: string; readonly key: KeyObject; readonly nowMs: number }

/** Whether a stored certificate is for the host and the key, and for long enough. A file that was written halfway is not. */
function isUsable(pem: string, { host, key, nowMs }: Use): boolean {
  try {
    const certificate = new X509Certificate(pem)
    const isFor = (certificate.checkHost(host) ?? certificate.checkIP(host)) !== undefined
    return isFor && certificate.checkPrivateKey(key) && Date.parse(certificate.validTo) - nowMs > RENEW_BEFORE_MS
  } catch {
    return false
  }
}
