import { createPrivateKey, X509Certificate } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { createSecureContext } from 'node:tls'
import type { TlsPair } from './tls-identity.ts'

/** Reads a certificate (with its chain) and a key in PEM. Throws an error that names the file if they can't be used together. */
export async function readPair(certFile: string, keyFile: string): Promise<TlsPair> {
  const cert = await readText('certificate', certFile)
  const key = await readText('key', keyFile)
  const certificate = parse(`${certFile} has no certificate in PEM`, () => new X509Certificate(cert))
  const secret = parse(`${keyFile} has no private key in PEM without a password`, () => createPrivateKey(key))
  if (!certificate.checkPrivateKey(secret))
    throw new Error(`the key in ${keyFile} does not belong to the certificate in ${certFile}`)
  parse(`${certFile} and ${keyFile} can't be used for TLS`, () => createSecureContext({ cert, key }))
  return { cert, key }
}

async function readText(what: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (cause) {
    throw new Error(`the TLS ${what} ${path} can't be read`, { cause })
  }
}

function parse<T>(problem: string, make: () => T): T {
  try {
    return make()
  } catch (cause) {
    throw new Error(problem, { cause })
  }
}
