import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer as createHttpServer } from 'node:http'
import { createServer, type Server } from 'node:net'
import { test, type TestContext } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { makeReadBuffers } from '../../../src/lib/streams/read-buffers.ts'
import { messageBytes } from '../../../src/lib/streams/web-socket-flow.ts'
import { makeSplittingAgent } from '../../../src/worker/agent/splitting-agent.ts'

const MIB = 1024 * 1024
const LIMIT_MS = 60_000

/** Starts a server that closes after the test. Resolves with its URL for WebSockets. */
async function listen(t: TestContext, server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const address = server.address()
  assert.ok(typeof address === 'object' && address !== null)
  return `ws://127.0.0.1:${String(address.port)}/`
}

function dial(t: TestContext, url: string, handshakeTimeout = LIMIT_MS, buffers = makeReadBuffers()): WebSocket {
  const agent = makeSplittingAgent(buffers)
  const socket = new WebSocket(url, { agent, perMessageDeflate: false, handshakeTimeout })
  t.after(() => socket.terminate())
  return socket
}

const limit = (): { readonly signal: AbortSignal } => ({ signal: AbortSignal.timeout(LIMIT_MS) })

test('bytes arrive in pieces and unchanged, texts and the close whole, also right behind the reply', async (t) => {
  const server = createHttpServer()
  const sockets = new WebSocketServer({ server })
  const sent = Buffer.alloc(3 * MIB, 'sandyard ')
  sockets.on('connection', (socket) => {
    socket.send('a text')
    socket.send(sent.subarray(0, MIB + 1), { binary: true, fin: false })
    socket.ping('in between')
    socket.send(sent.subarray(MIB + 1), { binary: true, fin: true })
    socket.close(1008, 'enough')
  })
  const socket = dial(t, await listen(t, server))
  const texts: string[] = []
  const pieces: Buffer[] = []
  const pings: string[] = []
  socket.on('message', (data, isBinary) => {
    if (isBinary) pieces.push(messageBytes(data))
    else texts.push(messageBytes(data).toString())
  })
  socket.on('ping', (data: Buffer) => pings.push(data.toString()))
  const [code, reason] = await once(socket, 'close', limit())
  assert.deepEqual([texts, pings, code, String(reason)], [['a text'], ['in between'], 1008, 'enough'])
  assert.ok(Buffer.concat(pieces).equals(sent))
  assert.ok(Math.max(...pieces.map(({ length }) => length)) < MIB)
})

test('pieces that are given back make room for the next, and texts in between stay as they are', async (t) => {
  const server = createHttpServer()
  const sockets = new WebSocketServer({ server })
  const sent = Buffer.from(Uint32Array.from({ length: 2 * MIB }, (_, at) => at).buffer)
  const told = 'x'.repeat(40_000)
  sockets.on('connection', (socket) => {
    for (let at = 0; at < sent.length; at += 100_000) {
      socket.send(sent.subarray(at, at + 100_000), { binary: true })
      if (at % 1_000_000 === 0) socket.send(told)
    }
    socket.close()
  })
  const buffers = makeReadBuffers()
  const socket = dial(t, await listen(t, server), LIMIT_MS, buffers)
  const texts: Buffer[] = []
  const memories = new Set<ArrayBufferLike>()
  let received = 0
  socket.on('message', (data, isBinary) => {
    const bytes = messageBytes(data)
    if (!isBinary) return void texts.push(bytes)
    assert.ok(bytes.equals(sent.subarray(received, received + bytes.length)))
    received += bytes.length
    if (bytes.buffer.byteLength >= 64 * 1024) memories.add(bytes.buffer)
    buffers.release(bytes)
  })
  await once(socket, 'close', limit())
  assert.equal(received, sent.length)
  assert.ok(texts.length === 9 && texts.every((text) => text.toString() === told))
  // Those with a part of a text, or of the head of a frame, are not used again.
  assert.ok(memories.size < 50, `${String(memories.size)} buffers were made for 128 of this size`)
})

test('a refusal arrives whole', async (t) => {
  const server = createHttpServer().on('upgrade', (_request, socket) => {
    socket.end('HTTP/1.1 503 Service Unavailable\r\ncontent-length: 10\r\n\r\n\x82\xfeno WORKER', 'latin1')
  })
  const socket = dial(t, await listen(t, server))
  socket.on('error', () => undefined)
  const [, response] = await once(socket, 'unexpected-response', limit())
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk)
  assert.deepEqual(
    [response.statusCode, Buffer.concat(chunks).toString('latin1')],
    [503, '\x82\xfeno WORKER'.slice(0, 10)],
  )
})

test('a server that does not answer an upgrade is left after the limit', async (t) => {
  const server = createServer((connection) => t.after(() => connection.destroy()))
  const socket = dial(t, await listen(t, server), 50)
  const [error] = await once(socket, 'error', limit()).catch((thrown: unknown) => [thrown])
  assert.match(String(error), /handshake has timed out/)
})

test('a reply without an end is given up', async (t) => {
  const server = createServer((connection) => {
    connection.on('error', () => undefined)
    connection.write(`HTTP/1.1 101 Switching Protocols\r\nx: ${'x'.repeat(40_000)}`)
  })
  const socket = dial(t, await listen(t, server))
  const [error] = await once(socket, 'error', limit()).catch((thrown: unknown) => [thrown])
  assert.match(String(error), /the reply to an upgrade is too large/)
})
