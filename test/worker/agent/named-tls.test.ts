import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { makeNamedTls } from '../../../src/worker/agent/pinned-tls.ts'
import { makeCertificate } from '../../support/certificates.ts'

// Server processes behind one certificate, which workers reach by their addresses, as in Kubernetes.

const folder = mkdtempSync(join(tmpdir(), 'sandyard-named-'))
const trusted = getCACertificates('default')
let server: ReturnType<typeof createServer>
let requests = 0

before(async () => {
  const { caFile, certFile, keyFile } = await makeCertificate(folder)
  setDefaultCACertificates([...trusted, readFileSync(caFile, 'utf8')])
  server = createServer({ cert: readFileSync(certFile), key: readFileSync(keyFile) }, (_request, response) => {
    requests += 1
    response.end('reached')
  }).listen(0, '::1')
  await once(server, 'listening')
})
after(() => {
  server.closeAllConnections()
  server.close()
  setDefaultCACertificates(trusted)
  rmSync(folder, { recursive: true })
})

const send = (name: string): Promise<Response> => {
  const { port } = server.address() as AddressInfo
  const sent = {
    method: 'GET',
    headers: { authorization: 'Bearer secret' },
    body: '',
    signal: AbortSignal.timeout(10_000),
  } as const
  return makeNamedTls(name)?.send(new URL(`https://[::1]:${String(port)}/`), sent) ?? assert.fail('no name')
}

test('a server at an address that its certificate lacks is reached by the name of its certificate', async () => {
  assert.equal(await (await send('localhost')).text(), 'reached')
})

test('a server whose certificate is for another name gets nothing', async () => {
  const before = requests
  await assert.rejects(send('cloud.example'), /not match certificate's altnames/)
  assert.equal(requests, before)
})

test('a certificate of an unknown authority is refused', async () => {
  setDefaultCACertificates(trusted)
  await assert.rejects(send('localhost'), /unable to verify|self-signed certificate/)
})

test('an address is no name', () => {
  assert.deepEqual([makeNamedTls('10.0.0.5'), makeNamedTls('[fd00::5]')], [null, null])
})
