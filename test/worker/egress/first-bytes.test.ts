import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect as connectTcp, createServer, type AddressInfo, type Socket } from 'node:net'
import { test } from 'node:test'
import { connect } from 'node:tls'
import fc from 'fast-check'
import { parseFirstBytes } from '../../../src/worker/egress/first-bytes.ts'
import { readFirstBytes } from '../../../src/worker/egress/read-first-bytes.ts'
import { costOfFourfold } from '../../support/processor-time.ts'

test('a handshake shows its server name, however it is split', async () => {
  const hello = await clientHello('api.Example.com')
  const found = { form: 'tls', name: 'api.example.com', hidesName: false }
  assert.deepEqual(parseFirstBytes(hello), found)
  for (let end = 0; end < hello.length; end++) assert.equal(parseFirstBytes(hello.subarray(0, end)), null, String(end))
  const message = hello.subarray(5)
  assert.deepEqual(parseFirstBytes(inRecords([message.subarray(0, 35), message.subarray(35)])), found)
  const pieces = Array.from({ length: 15 }, (_, n) => message.subarray(n, n + 1))
  const split = inRecords([...pieces, message.subarray(15)])
  assert.deepEqual(parseFirstBytes(split), found, 'over 16 records')
  for (let end = 0; end < split.length; end++) assert.equal(parseFirstBytes(split.subarray(0, end)), null, String(end))
  assert.deepEqual(parseFirstBytes(await clientHello('')), { form: 'tls', name: null, hidesName: false })
})

test('a handshake in more than 16 records hides its name', async () => {
  const message = (await clientHello('api.test')).subarray(5)
  const pieces = Array.from({ length: 17 }, (_, n) => message.subarray(n, n < 16 ? n + 1 : undefined))
  assert.deepEqual(parseFirstBytes(inRecords(pieces)), { form: 'tls', name: null, hidesName: true })
})

test('the time to read a handshake grows with its length alone, also in records of one byte', () => {
  const cost = costOfFourfold(600, (size) => {
    const message = Buffer.from([1, 0, 255, 255, ...Array<number>(size).fill(0)])
    parseFirstBytes(inRecords(Array.from(message, (byte) => Buffer.from([byte]))))
  })
  assert.ok(cost < 8, `four times the records take ${cost.toFixed(1)} times as long`)
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

/** TLS records of a handshake, each with a part of it. */
function inRecords(parts: readonly Buffer[]): Buffer {
  return Buffer.concat(parts.flatMap((part) => [Buffer.from([0x16, 3, 1, part.length >> 8, part.length & 255]), part]))
}

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
