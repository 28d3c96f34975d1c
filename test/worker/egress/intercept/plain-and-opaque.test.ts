import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test, type TestContext } from 'node:test'
import { connect as connectTls } from 'node:tls'
import { makeBodyBudgets } from '../../../../src/worker/egress/intercept/body-budget.ts'
import { makeCertificate } from '../../../support/certificates.ts'
import { openInterceptor, openUpstream, testSecret } from '../../../support/intercept.ts'

const folder = mkdtempSync(join(tmpdir(), 'opaque-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])
const elsewhere = { allowed_hosts: [{ type: 'exact', value: 'x.test' }] } as const

async function send(socket: Socket, parts: readonly (string | Buffer)[]): Promise<string> {
  const read: Buffer[] = []
  socket.on('error', () => socket.destroy())
  socket.on('data', (bytes: Buffer) => read.push(bytes))
  for (const part of parts) {
    socket.write(part)
    await new Promise((resolve) => setImmediate(resolve))
  }
  await once(socket, 'close')
  return Buffer.concat(read).toString('latin1')
}

test('other bytes than HTTP pass inside TLS both ways, but for placeholders', async (t) => {
  const upstream = await openUpstream(t, certificate, (socket) => {
    socket.once('data', () => socket.end('\0answer'))
  })
  const secrets = [testSecret(elsewhere)]
  const interceptor = await openInterceptor(t, { upstreamPort: upstream.port, caFile: certificate.caFile, secrets })
  const { port, ca } = interceptor
  const open = (): Socket => connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca })
  assert.equal(await send(open(), ['\0\x01hello']), '\0answer')
  assert.equal(upstream.received(), '\0\x01hello')
  await send(open(), ['\0$MSB_KEY'])
  assert.deepEqual(interceptor.refused[0]?.violation?.location, 'opaque')
  assert.equal(upstream.received(), '\0\x01hello')
})

/** An HTTP server without TLS that records the header fields that it gets. */
async function openPlainServer(t: TestContext) {
  const received: string[] = []
  const server = createServer((incoming, outgoing) => {
    received.push(...incoming.rawHeaders)
    outgoing.end('hello')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  return { port: (server.address() as AddressInfo).port, received }
}

test('plain HTTP gets values of secrets that ask for no verified server, and of no others', async (t) => {
  const server = await openPlainServer(t)
  const secrets = [
    testSecret({ require_tls_identity: false }),
    testSecret({ env_var: 'B', placeholder: '$STRICT', value: 'never' }),
  ]
  const { caFile } = certificate
  const interceptor = await openInterceptor(t, { upstreamPort: server.port, caFile, secrets, isPlain: true })
  const open = (): Socket => connect(interceptor.port, '127.0.0.1')
  const get = (fields: string): string => `GET / HTTP/1.1\r\nConnection: close\r\n${fields}\r\n\r\n`
  assert.match(await send(open(), [get('Host: api.test\r\nX: $MSB_KEY')]), /hello$/)
  assert.ok(server.received.includes('the-real-value'))
  assert.match(await send(open(), [get('Host: api.test\r\nX: $STRICT')]), /^HTTP\/1.1 403/)
  assert.match(await send(open(), [get('Host: x.test\r\nX: $MSB_KEY')]), /^HTTP\/1.1 403/)
  assert.ok(!server.received.includes('never') && !server.received.includes('x.test'))
})

test('100 Continue, compressed bodies, forbidden trailers and a full budget', async (t) => {
  const http = createServer((incoming, outgoing) => incoming.resume().on('end', () => outgoing.end('hello')))
  const upstream = await openUpstream(t, certificate, (socket) => http.emit('connection', socket))
  const { caFile } = certificate
  const secrets = [testSecret(), testSecret({ ...elsewhere, env_var: 'X', placeholder: '$OTHER' })]
  const budget = makeBodyBudgets({ capacity: 256 * 1024, idleLimitMs: 60_000 })('')
  const { port, ca, refused } = await openInterceptor(t, { upstreamPort: upstream.port, caFile, secrets, budget })
  const post = (head: string, ...body: string[]): Promise<string> => {
    const lines = `POST / HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n${head}\r\n\r\n`
    return send(connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca }), [lines, ...body])
  }
  // The client waits for it: the head leaves only with the changed body.
  const socket = connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca })
  socket.write(
    'POST / HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n',
  )
  const [first] = (await once(socket, 'data')) as [Buffer]
  assert.equal(first.toString(), 'HTTP/1.1 100 Continue\r\n\r\n')
  assert.match(await send(socket, ['$MSB_KEY']), /^HTTP\/1.1 200/)
  assert.ok(upstream.received().endsWith('\r\n\r\nthe-real-value'))
  assert.match(await post('Content-Encoding: gzip\r\nContent-Length: 4', 'zipp'), /^HTTP\/1.1 200/)
  assert.match(await post('Content-Encoding: gzip\r\nContent-Length: 8', '$MSB', '_KEY'), /^(HTTP\/1.1 403|$)/)
  await post('Transfer-Encoding: chunked', '1\r\na\r\n0\r\nKey: $OTHER\r\n\r\n')
  assert.deepEqual(refused.at(-1)?.violation?.location, 'trailer')
  // A body that is kept as a whole may take half of the budget of the test.
  assert.match(await post('Content-Length: 200000', 'a'.repeat(200_000)), /^HTTP\/1.1 403/)
  assert.match(refused.at(-1)?.message ?? '', /no memory for a body/)
})
