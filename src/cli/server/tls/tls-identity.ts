import { createECDH, createPrivateKey, createPublicKey, hkdfSync, type KeyObject } from 'node:crypto'
import { hostname, networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { publicKeyFingerprint } from '../../../lib/self-signed-certificate.ts'
import { isUplinkDevice } from '../../../worker/network/network-names.ts'
import type { DataFolder } from '../data-folder.ts'
import { readStoredCertificate, type StoredCertificateDeps } from './stored-certificate.ts'

/** A certificate and its private key, in PEM. */
export type TlsPair = { readonly cert: string; readonly key: string }

/** The order of the curve P-256 (FIPS 186-4, D.1.2.3). A private key is a number from 1 to the order less 1. */
const P256_ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n

/**
 * Derives the private key of the installation's own certificate from the sealing key. All server processes of an
 * installation have the same sealing key. So they have the same TLS key, and none of them must store or share it. 48
 * bytes make the bias of the remainder negligible (FIPS 186-4, B.4.1).
 */
function deriveTlsKey(sealingKey: Buffer): KeyObject {
  const bytes = Buffer.from(hkdfSync('sha256', sealingKey, '', 'sandyard: the TLS key of the installation', 48))
  const secret = (BigInt(`0x${bytes.toString('hex')}`) % (P256_ORDER - 1n)) + 1n
  const d = Buffer.from(secret.toString(16).padStart(64, '0'), 'hex')
  const curve = createECDH('prime256v1')
  curve.setPrivateKey(d)
  const point = curve.getPublicKey() // the byte 4, then both coordinates
  const [x, y] = [point.subarray(1, 33), point.subarray(33)].map((part) => part.toString('base64url'))
  return createPrivateKey({
    format: 'jwk',
    key: { kty: 'EC', crv: 'P-256', d: d.toString('base64url'), x: x ?? '', y: y ?? '' },
  })
}

/** The fingerprint that join tokens pin: the SHA-256 of the installation's own public key, in hex. */
export function ownFingerprint(sealingKey: Buffer): string {
  return publicKeyFingerprint(createPublicKey(deriveTlsKey(sealingKey)))
}

/** Workers check the key and no dates. */
const VALID_MS = 825 * 24 * 3_600_000

export type OwnCertificateDeps = StoredCertificateDeps & {
  readonly folder: Pick<DataFolder, 'path' | 'sealingKey'>
  /** The number of this process among those that share the port. */
  readonly index: number
}

/** The file with the installation's own certificate. It has no secret: clients may trust it. */
export function ownCertificateFile(dataDir: string): string {
  return join(dataDir, 'tls-certificate.pem')
}

/**
 * Returns a function that reads the certificate of the installation's own key for this machine's names and addresses,
 * and for `names`. It makes it if it is missing or about to expire. It is in the data folder, where clients on the
 * machine can read it.
 */
export function openOwnCertificate(deps: OwnCertificateDeps, names: readonly string[]): () => Promise<TlsPair> {
  const { folder, index } = deps
  const key = deriveTlsKey(folder.sealingKey)
  const keyPem = key.export({ type: 'pkcs8', format: 'pem' }).toString()
  const all = [...new Set(['localhost', hostname(), ...names, '127.0.0.1', '::1', ...machineAddresses()])]
  const wanted = {
    file: ownCertificateFile(folder.path),
    key,
    names: all,
    // The first process chooses the names, and the others have its certificate. Addresses may have come since.
    required: index === 0 ? all : [],
    validMs: VALID_MS,
  }
  return async () => ({ cert: (await readStoredCertificate(deps, wanted)).cert, key: keyPem })
}

/** The addresses by which clients may know this machine. Those of sandboxes' networks come and go, and so do link-local ones. */
function machineAddresses(): readonly string[] {
  return Object.entries(networkInterfaces())
    .filter(([device]) => !isUplinkDevice(device))
    .flatMap(([, all]) => (all ?? []).map(({ address }) => address))
    .filter((address) => !address.startsWith('fe80:'))
}
