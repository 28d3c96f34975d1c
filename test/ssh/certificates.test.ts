import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { admitsCertificate, parseSshCertificate } from '../../src/domain/orgs/ssh-certificate.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { verifySshSignature } from '../../src/ssh/verify-signature.ts'
import { whyNoOpenSsh } from '../support/openssh.ts'

const LIMIT_MS = 15_000

/** A certificate by ssh-keygen, decoded from base64. */
async function makeCertificate(dir: string, ...args: readonly string[]): Promise<Buffer> {
  const keygen = (...more: readonly string[]) => runCommand('ssh-keygen', ['-q', ...more], { timeoutMs: LIMIT_MS, cwd: dir }) // prettier-ignore
  for (const name of ['ca', 'own']) await keygen('-t', 'ed25519', '-N', '', '-f', name)
  await keygen('-s', 'ca', '-I', 'id', ...args, 'own.pub')
  return Buffer.from(readFileSync(join(dir, 'own-cert.pub'), 'utf8').split(' ')[1] ?? '', 'base64')
}

/** Whether a certificate is one, and its authority has signed it. */
function isGenuine(blob: Buffer): boolean {
  const certificate = parseSshCertificate(blob)
  if (certificate === null) return false
  const { authority, signed, signature } = certificate
  return verifySshSignature(`ssh-ed25519 ${authority.toString('base64')}`, signed, signature)
}

test(
  'a certificate with any changed bit, a missing end or more bytes is refused',
  { skip: whyNoOpenSsh() },
  async (t) => {
    const dir = mkdtempSync(join(tmpdir(), 'sandyard-certificate-'))
    t.after(() => {
      rmSync(dir, { recursive: true })
    })
    const blob = await makeCertificate(dir, '-n', 'one,two', '-V', '20260101000000Z:20270101000000Z', '-O', 'source-address=192.0.2.0/24,2001:db8::/32') // prettier-ignore
    assert.ok(isGenuine(blob))
    for (let at = 0; at < blob.length * 8; at++) {
      const changed = Buffer.from(blob)
      changed.writeUInt8(changed.readUInt8(at >> 3) ^ (1 << (at & 7)), at >> 3)
      assert.ok(!isGenuine(changed), `bit ${String(at)}`)
    }
    for (let length = 0; length < blob.length; length++) assert.ok(!isGenuine(blob.subarray(0, length)), String(length))
    assert.ok(!isGenuine(Buffer.concat([blob, Buffer.alloc(1)])))

    const certificate = parseSshCertificate(blob)
    assert.ok(certificate !== null)
    const admits = (now: string, address: string, ...names: readonly string[]): boolean =>
      admitsCertificate(certificate, { now: new Date(now), address, names })
    assert.ok(admits('2026-01-01T00:00:00Z', '192.0.2.7', 'two'))
    assert.ok(admits('2026-12-31T23:59:59Z', '::ffff:192.0.2.7', 'two', 'other'))
    assert.ok(admits('2026-06-01T00:00:00Z', '2001:db8::1', 'one'))
    assert.ok(!admits('2025-12-31T23:59:59Z', '192.0.2.7', 'two'), 'too early')
    assert.ok(!admits('2027-01-01T00:00:00Z', '192.0.2.7', 'two'), 'too late')
    for (const address of ['192.0.3.7', '2001:db9::1', '', 'nonsense'])
      assert.ok(!admits('2026-06-01T00:00:00Z', address, 'two'), address)
    assert.ok(!admits('2026-06-01T00:00:00Z', '192.0.2.7', 'three'), 'another name')
  },
)
