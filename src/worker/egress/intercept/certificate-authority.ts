import { createPrivateKey, X509Certificate, webcrypto } from 'node:crypto'
import 'reflect-metadata'
import * as x509 from '@peculiar/x509'
import type { CertificateAuthority } from '../../../domain/network/interception.ts'

/** A certificate that the authority signed for one host. */
export type LeafCertificate = { readonly certificate: string; readonly key: string }

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const
const HOUR_MS = 3_600_000
/** Clocks in sandboxes and on workers may differ by this much. */
const CLOCK_SKEW_MS = HOUR_MS

/** Signs certificates of hosts. All of them share one key, because making a key costs more than a signature. */
export type LeafSigner = (
  host: string,
  options: { readonly validityHours: number; readonly nowMs: number },
) => Promise<LeafCertificate>

/** Opens an authority for signing. Throws if the key is not that of the certificate, or the certificate is not an authority's. */
export async function openAuthority({ certificate, key }: CertificateAuthority): Promise<LeafSigner> {
  const parsed = new X509Certificate(certificate)
  const privateKey = createPrivateKey(key)
  if (!parsed.ca) throw new Error('the certificate is not that of a certificate authority')
  if (!parsed.checkPrivateKey(privateKey)) throw new Error('the key is not the key of the certificate')
  const signingAlgorithm = algorithmOf(privateKey.asymmetricKeyType, privateKey.asymmetricKeyDetails?.namedCurve)
  const issuer = new x509.X509Certificate(certificate)
  const der = privateKey.export({ type: 'pkcs8', format: 'der' })
  const signingKey = await webcrypto.subtle.importKey('pkcs8', der, signingAlgorithm, false, ['sign'])
  const leafKeys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify'])
  const leafKey = await exportKey(leafKeys.privateKey)
  const chain = issuer.toString('pem')
  return async (host, { validityHours, nowMs }) => {
    const leaf = await x509.X509CertificateGenerator.create(
      {
        // A common name has at most 64 characters, and clients read the alternative name.
        subject: [{ CN: [host.length <= 64 ? host : 'sandyard'] }],
        issuer: issuer.subjectName,
        notBefore: new Date(nowMs - CLOCK_SKEW_MS),
        notAfter: new Date(Math.min(nowMs + validityHours * HOUR_MS, issuer.notAfter.getTime())),
        signingAlgorithm,
        publicKey: leafKeys.publicKey,
        signingKey,
        extensions: [
          new x509.BasicConstraintsExtension(false, undefined, true),
          new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
          new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth]),
          new x509.SubjectAlternativeNameExtension([{ type: isAddress(host) ? 'ip' : 'dns', value: host }]),
          await x509.AuthorityKeyIdentifierExtension.create(issuer),
        ],
      },
      webcrypto,
    )
    return { certificate: `${leaf.toString('pem')}\n${chain}\n`, key: leafKey }
  }
}

function isAddress(host: string): boolean {
  return /^[\d.]+$/.test(host) || host.includes(':')
}

async function exportKey(key: webcrypto.CryptoKey): Promise<string> {
  const der = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', key))
  return createPrivateKey({ key: der, format: 'der', type: 'pkcs8' })
    .export({ type: 'pkcs8', format: 'pem' })
    .toString()
}

function algorithmOf(type: string | undefined, curve: string | undefined) {
  if (type === 'rsa') return { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' }
  if (type === 'ec' && curve === 'prime256v1') return ALGORITHM
  if (type === 'ec' && curve === 'secp384r1') return { name: 'ECDSA', namedCurve: 'P-384', hash: 'SHA-384' }
  throw new Error(`the authority's key is ${type ?? 'unknown'} ${curve ?? ''}; give an RSA, P-256 or P-384 key`)
}
