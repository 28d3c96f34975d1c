import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { openOwnCertificate, ownFingerprint } from '../../src/cli/server/tls/tls-identity.ts'
import { formatJoinToken, isJoinToken, pinOfJoinToken } from '../../src/domain/orgs/api-key.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { publicKeyFingerprint } from '../../src/lib/self-signed-certificate.ts'

test('server processes with one sealing key have one pin, whatever machine they run on; another sealing key has another', async (t) => {
  const sealingKey = systemRandom.bytes(32)
  const certificates = await Promise.all(
    ['10.0.0.1', 'second.example'].map(async (name) => {
      const path = makeFolder(t)
      const deps = { clock: systemClock, random: systemRandom, folder: { path, sealingKey }, index: 0 }
      const { cert, key } = await openOwnCertificate(deps, [name])()
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

test('the certificate stays the same while its key, names and time fit, so that copies of the file stay valid', async (t) => {
  const folder = { path: makeFolder(t), sealingKey: systemRandom.bytes(32) }
  const start = Date.parse('2026-01-01T00:00:00Z')
  const read = async (names: readonly string[], { days = 0, index = 0, sealingKey = folder.sealingKey } = {}) => {
    const clock = { now: () => new Date(start + days * 24 * 3_600_000) }
    return (
      await openOwnCertificate({ clock, random: systemRandom, folder: { ...folder, sealingKey }, index }, names)()
    ).cert
  }
  const first = await read(['a.example', '10.0.0.1'])
  assert.equal(await read(['10.0.0.1'], { days: 700 }), first)
  assert.equal(await read(['later.example'], { index: 1 }), first, 'a further process takes that of the first')
  assert.equal(new Set([first, ...(await Promise.all([1, 2, 3].map((index) => read([], { index }))))]).size, 1)

  const named = await read(['b.example'])
  assert.ok(named !== first && new X509Certificate(named).checkHost('b.example') !== undefined)
  const renewed = await read(['b.example'], { days: 740, index: 1 })
  assert.notEqual(renewed, named, 'it would expire within 90 days')
  assert.equal(await read([], { days: 740 }), renewed)
  assert.notEqual(await read([]), renewed, 'it is not valid yet')
  const other = await read([], { sealingKey: systemRandom.bytes(32), index: 1 })
  writeFileSync(join(folder.path, 'tls-certificate.pem'), other.slice(0, 200))
  const whole = await read([])
  assert.equal(publicKeyFingerprint(new X509Certificate(whole).publicKey), ownFingerprint(folder.sealingKey))
  assert.equal(await read([]), whole)
})

function makeFolder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), 'sandyard-identity-'))
  t.after(() => rmSync(path, { recursive: true }))
  return path
}

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
