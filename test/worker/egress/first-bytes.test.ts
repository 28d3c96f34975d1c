import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect as connectTcp, createServer, type AddressInfo, type Socket } from 'node:net'
import { test } from 'node:test'
import { connect } from 'node:tls'
import fc from 'fast-check'
import { parseFirstBytes } from '../../../src/worker/egress/first-bytes.ts'
import { readFirstBytes } from '../../../src/worker/egress/read-first-bytes.ts'

test('a handshake shows its server name, however it is split', async () => {
  const hello = await clientHello('api.Example.com')
  const found = { form: 'tls', name: 'api.example.com', hidesName: false }
  assert.deepEqual(parseFirstBytes(hello), found)
  for (let end = 0; end < hello.length; end++) assert.equal(parseFirstBytes(hello.subarray(0, end)), null, String(end))
  const records = [hello.subarray(5, 40), hello.subarray(40)].map((part) =>
    Buffer.concat([Buffer.from([0x16, 3, 1, part.length >> 8, part.length & 255]), part]),
  )
  assert.deepEqual(parseFirstBytes(Buffer.concat(records)), found, 'over two records')
  assert.deepEqual(parseFirstBytes(await clientHello('')), { form: 'tls', name: null, hidesName: false })
})

test('a request line is HTTP, and anything else is opaque', () => {
  const form = (text: string): string | null => parseFirstBytes(Buffer.from(text))?.form ?? null
  assert.equal(form('GET / HTTP/1.1\r\n'), 'http')
  assert.equal(form('GET /a'), null)
  assert.equal(form('PRI * HTTP/2.0\r\n'), 'http')
  assert.deepEqual(['SSH-2.0-x\r\n', '\u0000', 'GET  HTTP/1.1\r\n'].map(form), Array(3).fill('opaque'))
  assert.equal(form(`GET /${'a'.repeat(20_000)}`), 'opaque')
})

test('no bytes make the parser throw', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (bytes, isTls) => {
      parseFirstBytes(Buffer.from(isTls ? [0x16, 3, 1, 0, bytes.length, 1, 0, 0, bytes.length, ...bytes] : bytes))
    }),
  )
})

test('bytes that were read to judge a connection stay in it, and a silent client shows nothing', async (t) => {
  const server = createServer().listen(0, '127.0.0.1')
  t.after(() => server.close())
  await once(server, 'listening')
  const open = async (): Promise<readonly [Socket, Socket]> => {
    const accepted = once(server, 'connection') as Promise<[Socket]>
    const client = connectTcp((server.address() as AddressInfo).port, '127.0.0.1')
    const [socket] = await accepted
    t.after(() => socket.destroy())
    return [client, socket]
  }
  const [client, socket] = await open()
  client.end('GET / HTTP/1.1\r\nHost: a\r\n\r\n')
  assert.equal((await readFirstBytes(socket)).form, 'http')
  assert.match(Buffer.concat(await socket.toArray()).toString(), /^GET .*Host: a/s)
  const [silent, other] = await open()
  assert.equal((await readFirstBytes(other, 20)).form, 'opaque')
  silent.destroy()
})

/** The first bytes of Node's own client. */
async function clientHello(servername: string): Promise<Buffer> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const accepted = once(server, 'connection') as Promise<[Socket]>
  const client = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', servername })
  client.on('error', () => client.destroy())
  const [socket] = await accepted
  const [hello] = (await once(socket, 'data')) as [Buffer]
  client.destroy()
  socket.destroy()
  server.close()
  return hello
}
