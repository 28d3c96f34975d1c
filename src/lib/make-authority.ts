import { createPrivateKey, webcrypto } from 'node:crypto'
import 'reflect-metadata'
import * as x509 from '@peculiar/x509'

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const
const DAYS = 3650
const DAY_MS = 86_400_000
/** Clocks of the machines that check the certificate may be behind by this much. */
const CLOCK_SKEW_MS = 3_600_000

/** Makes a certificate authority, in PEM, that can sign certificates of hosts, but no further authorities. */
export async function makeAuthority(
  name: string,
  { nowMs }: { readonly nowMs: number },
): Promise<{ readonly certificate: string; readonly key: string }> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify'])
  const certificate = await x509.X509CertificateGenerator.createSelfSigned(
    {
      name: [{ CN: [name] }],
      notBefore: new Date(nowMs - CLOCK_SKEW_MS),
      notAfter: new Date(nowMs + DAYS * DAY_MS),
      signingAlgorithm: ALGORITHM,
      keys,
      extensions: [
        new x509.BasicConstraintsExtension(true, 0, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
        await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      ],
    },
    webcrypto,
  )
  const der = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', keys.privateKey))
  const key = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
  return { certificate: certificate.toString('pem'), key: key.export({ type: 'pkcs8', format: 'pem' }).toString() }
}
