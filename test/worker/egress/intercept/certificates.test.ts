import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { test } from 'node:test'
import { makeAuthority } from '../../../../src/lib/make-authority.ts'
import { openAuthority } from '../../../../src/worker/egress/intercept/certificate-authority.ts'
import { cacheLeafCertificates } from '../../../../src/worker/egress/intercept/leaf-certificates.ts'

const nowMs = Date.parse('2026-11-23T03:00:00Z')
const hourMs = 3_600_000

test('a leaf is for one host, signed by the authority, and valid for as long as asked', async () => {
  const authority = await makeAuthority('Sandyard test', { nowMs })
  const ca = new X509Certificate(authority.certificate)
  const sign = await openAuthority(authority)
  for (const host of ['api.test', '192.0.2.7', '2001:db8::7', `${'a'.repeat(63)}.test`]) {
    const leaf = new X509Certificate((await sign(host, { validityHours: 2, nowMs })).certificate)
    assert.ok(leaf.verify(ca.publicKey))
    assert.ok(host.includes('.test') ? leaf.checkHost(host) : leaf.checkIP(host))
    assert.equal(leaf.checkHost('other.test'), undefined)
    assert.equal(Date.parse(leaf.validTo), nowMs + 2 * hourMs)
    assert.equal(leaf.ca, false)
  }
})

test('an authority needs its own key and a certificate of an authority', async () => {
  const [one, other] = await Promise.all([makeAuthority('one', { nowMs }), makeAuthority('other', { nowMs })])
  await assert.rejects(openAuthority({ ...one, key: other.key }), /the key is not the key of the certificate/)
  const leaf = await (await openAuthority(one))('api.test', { validityHours: 1, nowMs })
  await assert.rejects(openAuthority(leaf), /not that of a certificate authority/)
})

test('certificates are cached up to the capacity, and made again before they expire', async () => {
  const authority = await makeAuthority('cache', { nowMs })
  const sign = await openAuthority(authority)
  const made: string[] = []
  let time = nowMs
  const leaves = cacheLeafCertificates({
    sign: (host, options) => {
      made.push(host)
      return sign(host, options)
    },
    capacity: 2,
    validityHours: 1,
    now: () => time,
  })
  for (const host of ['a', 'b', 'a', 'c', 'a', 'b']) await leaves.contextFor(host)
  assert.deepEqual(made, ['a', 'b', 'c', 'b'])
  time += hourMs
  await leaves.contextFor('b')
  assert.deepEqual(made.slice(4), ['b'])
})
