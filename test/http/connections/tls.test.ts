import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { once } from 'node:events'
import { request } from 'node:https'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { connect } from 'node:tls'
import { systemClock } from '../../../src/lib/clock.ts'
import { DEFAULT_SERVER_SETTINGS, type ServerSettings } from '../../../src/http/server/server.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeSelfSignedCertificate } from '../../../src/lib/self-signed-certificate.ts'
import { KEY, makeHttpWorld } from '../../support/http-world.ts'
import { openConnection } from '../../support/raw-http.ts'
import { waitUntil } from '../../support/wait.ts'

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const nowMs = systemClock.now().getTime()
const cert = makeSelfSignedCertificate({
  key: privateKey,
  names: ['localhost'],
  from: new Date(nowMs - 60_000),
  until: new Date(nowMs + 3_600_000),
  serial: systemRandom.bytes(15),
})
const tls = { cert, key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() }

async function listen(t: TestContext, settings: Partial<ServerSettings>) {
  const app = makeHttpWorld({ server: { tls, settings: { ...DEFAULT_SERVER_SETTINGS, ...settings } } })
  const port = Number(new URL(await app.listen({ host: '127.0.0.1', port: 0 })).port)
  t.after(() => app.close())
  const get = (localAddress = '127.0.0.1'): Promise<number> => {
    const { promise, resolve, reject } = Promise.withResolvers<number>()
    const to = { host: '127.0.0.1', port, servername: 'localhost', ca: cert, localAddress, agent: false }
    const sent = request({ ...to, path: '/healthz' })
    sent.on('error', reject).on('response', (reply) => resolve(reply.resume().statusCode ?? 0))
    sent.end()
    return promise
  }
  return { app, port, get }
}

test('a client that speaks plain HTTP to TLS is disconnected', async (t) => {
  const { port, get } = await listen(t, {})
  const plain = openConnection(port)
  plain.socket.write('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n')
  await waitUntil(() => plain.isClosed())
  assert.doesNotMatch(plain.received(), /HTTP/)
  assert.equal(await get(), 200)
})

test('bodies of many small chunks are read over TLS, the second one in parts', async (t) => {
  const { port } = await listen(t, {})
  const head = `POST /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${KEY}\r\nconnection: close\r\n`
  const body = `${'1\r\n \r\n'.repeat(17_000)}2\r\n{}\r\n0\r\n\r\n`
  for (const nth of ['first', 'second']) {
    const socket = connect({ port, host: '127.0.0.1', servername: 'localhost', ca: cert })
    socket.write(`${head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n${body}`)
    assert.match(await text(socket), /invalid request: image/, nth)
  }
})

test('connections whose TLS handshake is unfinished count against the limit of their address, and end after a while', async (t) => {
  const connections = { ...DEFAULT_SERVER_SETTINGS.connections, perAddress: 2 }
  const { port, get } = await listen(t, { connections, headTimeoutMs: 1_000 })
  const silent = [openConnection(port, '127.0.0.2'), openConnection(port, '127.0.0.2')]
  await Promise.all(silent.map(({ socket }) => once(socket, 'connect')))
  await assert.rejects(get('127.0.0.2'))
  assert.equal(await get('127.0.0.3'), 200)
  await waitUntil(() => silent.every(({ isClosed }) => isClosed()))
  assert.equal(await get('127.0.0.2'), 200)
})

test('neither an idle TLS connection nor an unfinished handshake delays the end of the server', async (t) => {
  const { app, port } = await listen(t, { headTimeoutMs: 120_000 }) // the handshake could take so long
  const silent = openConnection(port)
  await once(silent.socket, 'connect')
  const idle = connect({ host: '127.0.0.1', port, servername: 'localhost', ca: cert })
  await once(idle, 'secureConnect')
  let isClosed = false
  const closing = app.close().then(() => {
    isClosed = true
  })
  await waitUntil(() => isClosed)
  await closing
  await waitUntil(() => silent.isClosed() && idle.destroyed)
})
