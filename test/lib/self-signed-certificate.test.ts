import assert from 'node:assert/strict'
import { createHash, generateKeyPairSync, X509Certificate } from 'node:crypto'
import { test } from 'node:test'
import { makeSelfSignedCertificate, publicKeyFingerprint } from '../../src/lib/self-signed-certificate.ts'

const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const names = ['localhost', 'a.example', '127.0.0.1', '::1', '2001:db8::1:0:5', '::ffff:192.0.2.1']
const [from, until] = [new Date('2026-01-02T03:04:05.678Z'), new Date('2051-06-07T08:09:10Z')]
const pem = makeSelfSignedCertificate({ key: privateKey, names, from, until, serial: Buffer.alloc(15, 0xff) })
const certificate = new X509Certificate(pem)

test('a certificate is signed with its own key, and is valid for its names and dates as Node reads them', () => {
  assert.ok(certificate.verify(publicKey))
  assert.ok(certificate.checkPrivateKey(privateKey))
  assert.deepEqual(
    [certificate.validFromDate, certificate.validToDate].map((date) => date.toISOString()),
    ['2026-01-02T03:04:05.000Z', '2051-06-07T08:09:10.000Z'],
  )
  for (const name of ['localhost', 'a.example']) assert.equal(certificate.checkHost(name), name)
  for (const address of names.slice(2)) assert.equal(certificate.checkIP(address), address)
  assert.equal(certificate.checkHost('b.example'), undefined)
  assert.equal(certificate.checkIP('127.0.0.2'), undefined)
})

test('a certificate can sign no other certificate, and only serve', () => {
  assert.equal(certificate.ca, false)
  assert.deepEqual(certificate.keyUsage, ['1.3.6.1.5.5.7.3.1'])
})

test('the fingerprint is that of the public key, so a new certificate of the same key has the same', () => {
  const again = new X509Certificate(
    makeSelfSignedCertificate({ key: privateKey, names: ['x'], from, until, serial: Buffer.alloc(15) }),
  )
  const bytes = publicKey.export({ type: 'spki', format: 'der' })
  assert.equal(publicKeyFingerprint(again.publicKey), createHash('sha256').update(bytes).digest('hex'))
  assert.notEqual(again.fingerprint256, certificate.fingerprint256)
})
