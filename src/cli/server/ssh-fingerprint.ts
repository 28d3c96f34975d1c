import ssh2 from 'ssh2'
import type { Config } from '../../config.ts'
import { sshFingerprint } from '../../domain/orgs/ssh-key.ts'
import { errorCodeOf } from '../../lib/error-code.ts'

const LIMIT_MS = 5_000

/**
 * Describes for `sandyard doctor` the SSH server at the address of the settings, with the fingerprint that clients see. It need
 * not run. Rejects if something else answers there.
 */
export async function describeSsh({ host, sshPort: port }: Pick<Config, 'host' | 'sshPort'>): Promise<string> {
  if (port === 0) return 'off (SANDYARD_SSH_PORT)'
  const where = `port ${String(port)}`
  try {
    return `${where}; the host key is ${await readFingerprint(host, port)}`
  } catch (error) {
    if (errorCodeOf(error) === 'ECONNREFUSED') return `${where}, when a server runs`
    throw new Error(`${where} does not answer as an SSH server`, { cause: error })
  }
}

const WILDCARDS: ReadonlyMap<string, string> = new Map([
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
])

/** Resolves with the fingerprint of the host key of an SSH server, without a login. */
function readFingerprint(host: string, port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const client = new ssh2.Client()
    client.on('error', reject)
    client.connect({
      host: WILDCARDS.get(host) ?? host,
      port,
      username: 'doctor',
      readyTimeout: LIMIT_MS,
      hostVerifier: (key: Buffer) => {
        resolve(sshFingerprint(key))
        return false // ends the connection
      },
    })
  })
}
