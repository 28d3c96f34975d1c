import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { readFileOrNull } from '../../lib/files.ts'
import { readStoredCertificate, type StoredCertificateDeps } from '../server/tls/stored-certificate.ts'
import type { TlsPair } from '../server/tls/tls-identity.ts'

const VALID_MS = 3_650 * 24 * 3_600_000

/**
 * Reads the worker's own certificate for its registry, or makes it. Nodes trust the file, so it stays the same for ten years, unless the
 * name of the registry changes. `isNew`: nodes must get the file.
 */
export async function readRegistryCertificate(
  deps: StoredCertificateDeps & { readonly dir: string },
  host: string,
): Promise<TlsPair & { readonly file: string; readonly isNew: boolean }> {
  const [file, keyFile] = [join(deps.dir, 'certificate.pem'), join(deps.dir, 'key.pem')]
  const stored = await readFileOrNull(keyFile)
  const key = stored === null ? makeKey() : createPrivateKey(stored)
  const keyPem = key.export({ type: 'pkcs8', format: 'pem' }).toString()
  if (stored === null) await writeFile(keyFile, keyPem, { mode: 0o600, flush: true })
  const wanted = { file, key, names: [host], required: [host], validMs: VALID_MS }
  return { ...(await readStoredCertificate(deps, wanted)), key: keyPem, file }
}

function makeKey(): KeyObject {
  return generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
}
