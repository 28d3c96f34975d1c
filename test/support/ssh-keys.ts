import { generateKeyPairSync } from 'node:crypto'

/** The line of a new ed25519 key in the OpenSSH format, as `ssh-keygen` writes it. */
export function makeSshKey(): string {
  const { publicKey } = generateKeyPairSync('ed25519')
  const raw = publicKey.export({ type: 'spki', format: 'der' }).subarray(-32)
  const blob = Buffer.concat([sshString(Buffer.from('ssh-ed25519')), sshString(raw)])
  return `ssh-ed25519 ${blob.toString('base64')} me@laptop`
}

function sshString(bytes: Buffer): Buffer {
  const length = Buffer.alloc(4)
  length.writeUInt32BE(bytes.length)
  return Buffer.concat([length, bytes])
}
