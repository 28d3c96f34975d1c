import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { OwnerVisibleError } from '../../start-error.ts'

/** The paths at which Linux distributions store the certificates of all authorities that programs trust, in one file. */
export const CA_BUNDLES = [
  '/etc/ssl/certs/ca-certificates.crt', // Debian, Alpine, Arch
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem', // Fedora, Red Hat
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/ssl/ca-bundle.pem', // SUSE
  '/etc/ssl/cert.pem', // Alpine, the BSDs
] as const

/** The path of this machine's bundle, or null if it has none. */
export function findCaBundle(): string | null {
  return CA_BUNDLES.find((path) => existsSync(path)) ?? null
}

/** Reads this machine's bundle. */
export async function readCaBundle(): Promise<string> {
  const path = findCaBundle()
  if (path === null)
    throw new OwnerVisibleError(
      'network.trust_host_cas: this worker has no certificates of authorities (ca-certificates)',
    )
  return await readFile(path, 'utf8')
}
