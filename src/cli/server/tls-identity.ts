import { createECDH, createPrivateKey, createPublicKey, hkdfSync, type KeyObject } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { hostname, networkInterfaces } from 'node:os'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Random } from '../../lib/random.ts'
import { makeSelfSignedCertificate, publicKeyFingerprint } from '../../lib/self-signed-certificate.ts'
import type { DataFolder } from './data-folder.ts'

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

/** Older than any clock that is wrong by hours. */
const BACKDATED_MS = 24 * 3_600_000
/** Workers check the key and no dates. Clients that trust the file get a new one at each start of the server. */
const VALID_MS = 825 * 24 * 3_600_000

export type OwnCertificateDeps = {
  readonly clock: Pick<Clock, 'now'>
  readonly random: Random
  readonly folder: Pick<DataFolder, 'path' | 'sealingKey'>
}

/** The file with the installation's own certificate. It has no secret: clients may trust it. */
export function ownCertificateFile(dataDir: string): string {
  return join(dataDir, 'tls-certificate.pem')
}

/**
 * Makes a certificate of the installation's own key for this machine's names and addresses, and for `names`. Stores it
 * in the data folder, where clients on the machine can read it.
 */
export async function makeOwnCertificate(
  { clock, random, folder }: OwnCertificateDeps,
  names: readonly string[],
): Promise<TlsPair> {
  const key = deriveTlsKey(folder.sealingKey)
  const addresses = Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address))
  const nowMs = clock.now().getTime()
  const cert = makeSelfSignedCertificate({
    key,
    names: [...new Set(['localhost', hostname(), ...names, '127.0.0.1', '::1', ...addresses])],
    from: new Date(nowMs - BACKDATED_MS),
    until: new Date(nowMs + VALID_MS),
    serial: random.bytes(15),
  })
  await writeFile(ownCertificateFile(folder.path), cert, { mode: 0o644 })
  return { cert, key: key.export({ type: 'pkcs8', format: 'pem' }).toString() }
}
