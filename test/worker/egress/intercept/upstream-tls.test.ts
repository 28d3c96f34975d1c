import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { makeUpstreamConnector, type UpstreamTls } from '../../../../src/worker/egress/intercept/upstream-tls.ts'
import { makeCertificate } from '../../../support/certificates.ts'
import { openUpstream } from '../../../support/intercept.ts'

const folder = mkdtempSync(join(tmpdir(), 'upstream-tls-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['a.test', 'b.test'])
const ca = readFileSync(certificate.caFile, 'utf8')
const strict: UpstreamTls = {
  verify_upstream: true,
  scoped_verify_upstream: [],
  upstream_ca_certs: [],
  scoped_upstream_ca_certs: [],
}

test('a server is verified by the certificates for its host, unless verification is off for it', async (t) => {
  const { port } = await openUpstream(t, certificate, (socket) => socket.resume())
  const isTrusted = async (host: string, settings: UpstreamTls): Promise<boolean> => {
    const socket = connect(port, '127.0.0.1')
    t.after(() => socket.destroy())
    try {
      await makeUpstreamConnector(settings).connect(socket, host, [])
      return true
    } catch {
      return false
    }
  }
  const everywhere = { ...strict, upstream_ca_certs: [ca] }
  const scoped = { ...strict, scoped_upstream_ca_certs: [{ pattern: '*.A.test', certificate: ca }] }
  const unverified = { ...strict, scoped_verify_upstream: [{ pattern: 'b.test', verify: false }] }
  const trusted = await Promise.all(
    [strict, everywhere, scoped, unverified].flatMap((settings) =>
      ['a.test', 'b.test', 'c.test', '127.0.0.1'].map((host) => isTrusted(host, settings)),
    ),
  )
  assert.deepEqual(
    [trusted.slice(0, 4), trusted.slice(4, 8), trusted.slice(8, 12), trusted.slice(12)],
    [
      [false, false, false, false],
      [true, true, false, true],
      [true, false, false, false],
      [false, true, false, false],
    ],
  )
})
