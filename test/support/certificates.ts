import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'

/** Files of a certificate that a certificate authority of the test has signed. */
export type TestCertificate = {
  readonly caFile: string
  readonly certFile: string
  readonly keyFile: string
}

const LIMIT_MS = 30_000

/** Creates a certificate authority in a folder, and a certificate for `localhost`, 127.0.0.1 and `names`. */
export async function makeCertificate(folder: string, names: readonly string[] = []): Promise<TestCertificate> {
  const path = (name: string): string => join(folder, name)
  const openssl = async (...args: readonly string[]): Promise<void> => {
    await runCommand('openssl', args, { timeoutMs: LIMIT_MS, cwd: folder })
  }
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'] as const
  await openssl('req', '-x509', ...key, '-keyout', 'ca.key', '-out', 'ca.pem', '-days', '2', '-subj', '/CN=test CA')
  await openssl('req', ...key, '-keyout', 'key.pem', '-out', 'request.pem', '-subj', '/CN=localhost')
  const alternatives = ['localhost', ...names].map((name) => `DNS:${name}`)
  writeFileSync(path('extensions'), `subjectAltName=${[...alternatives, 'IP:127.0.0.1'].join(',')}\n`)
  const signer = [
    '-CA',
    'ca.pem',
    '-CAkey',
    'ca.key',
    '-CAcreateserial',
    '-days',
    '2',
    '-extfile',
    'extensions',
  ] as const
  await openssl('x509', '-req', '-in', 'request.pem', ...signer, '-out', 'certificate.pem')
  return { caFile: path('ca.pem'), certFile: path('certificate.pem'), keyFile: path('key.pem') }
}
