import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { makeOwnCertificate, ownFingerprint } from '../../src/cli/server/tls-identity.ts'
import { formatJoinToken, isJoinToken, pinOfJoinToken } from '../../src/domain/orgs/api-key.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { publicKeyFingerprint } from '../../src/lib/self-signed-certificate.ts'

test('server processes with one sealing key have one pin, whatever machine they run on; another sealing key has another', async (t) => {
  const sealingKey = systemRandom.bytes(32)
  const certificates = await Promise.all(
    ['10.0.0.1', 'second.example'].map(async (name) => {
      const path = mkdtempSync(join(tmpdir(), 'sandyard-identity-'))
      t.after(() => rmSync(path, { recursive: true }))
      const deps = { clock: systemClock, random: systemRandom, folder: { path, sealingKey } }
      const { cert, key } = await makeOwnCertificate(deps, [name])
      assert.equal(readFileSync(join(path, 'tls-certificate.pem'), 'utf8'), cert)
      assert.ok(!cert.includes('PRIVATE') && key.includes('PRIVATE'))
      return new X509Certificate(cert)
    }),
  )
  const pin = ownFingerprint(sealingKey)
  for (const certificate of certificates) assert.equal(publicKeyFingerprint(certificate.publicKey), pin)
  assert.ok(certificates[0]?.checkIP('10.0.0.1') !== undefined && certificates[0].checkIP('127.0.0.1') !== undefined)
  assert.ok(certificates[1]?.checkHost('second.example') !== undefined)
  assert.notEqual(ownFingerprint(systemRandom.bytes(32)), pin)
})

test('a join token carries its pin under its checksum', () => {
  for (const pin of ['00'.repeat(32), 'ff'.repeat(32), ownFingerprint(systemRandom.bytes(32)), null]) {
    const token = formatJoinToken(systemRandom.bytes(32), pin)
    assert.ok(isJoinToken(token) && token.length <= 200, token) // the longest token that the join request takes
    assert.equal(pinOfJoinToken(token), pin)
    const at = token.length - 10
    const changed = token.slice(0, at) + (token[at] === 'A' ? 'B' : 'A') + token.slice(at + 1)
    assert.equal(isJoinToken(changed), false)
  }
})
