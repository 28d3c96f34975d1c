import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { makeChunkPacer } from '../../../src/http/connections/pace-chunks.ts'
import { PEERS_ARE_CLIENTS } from '../../../src/http/requests/client-address.ts'
import { ChunkedRequest } from '../../../src/http/requests/bodies/chunked-request.ts'
import { exchangeRaw } from '../../support/raw-http.ts'

/**
 * A server that answers each request with its body, refuses paths that begin with /refuse before the body has arrived, and answers
 * /ignore without its body. It never reads the body of /stop,
 * sends nothing to /half-close,
 * and closes connections to /timeout that make no progress for a second.
 */
async function listen(t: TestContext) {
  const pacer = makeChunkPacer(PEERS_ARE_CLIENTS)
  const requests: ChunkedRequest[] = []
  const server = createServer({ IncomingMessage: pacer.Request }, (request, response) => {
    assert.ok(request instanceof ChunkedRequest)
    requests.push(request)
    if (request.url?.startsWith('/refuse') === true) request.dropChunks()
    else if (request.url === '/ignore') response.end('ignored')
    else if (request.url === '/stop') request.pause()
    else if (request.url === '/timeout') {
      request.socket.setTimeout(1_000)
      void text(request).then((body) => response.end(body), response.destroy.bind(response))
    } else if (request.url === '/half-close') setImmediate(() => request.socket.end())
    else void text(request).then((body) => response.end(body), response.destroy.bind(response))
  })
  const webSockets = new WebSocketServer({ noServer: true })
  server.on('upgrade', (request: IncomingMessage, socket, head) => {
    webSockets.handleUpgrade(request, socket, head, (webSocket) => {
      webSocket.on('message', (message: Buffer) => {
        webSocket.send(message)
      })
    })
  })
  pacer.attach(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(async () => {
    for (const webSocket of webSockets.clients) webSocket.terminate()
    server.closeAllConnections()
    await server[Symbol.asyncDispose]()
  })
  const { port } = server.address() as AddressInfo
  return { port, requests }
}

const HEAD = 'POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n'
/** A body that begins in far more chunks than are read in a turn. From then on, a server reads in parts. */
const MANY_CHUNKS = `${HEAD}connection: close\r\n\r\n${'1\r\na\r\n'.repeat(10_000)}0\r\n\r\n`

/** The chunks of a body, whose sizes are taken in turn. */
function encode(body: string, sizes: readonly number[]): string {
  let encoded = ''
  for (let at = 0, nth = 0; at < body.length; nth += 1) {
    const size = sizes[nth % sizes.length] ?? 1
    const chunk = body.slice(at, at + size)
    encoded += `${chunk.length.toString(16)}\r\n${chunk}\r\n`
    at += size
  }
  return `${encoded}0\r\n\r\n`
}

test('bodies in chunks of any sizes arrive whole and in order, whether reads are parsed in parts or not', async (t) => {
  const { port } = await listen(t)
  const body = Array.from({ length: 4_000 }, (_, n) => `${String(n)} `).join('')
  const patterns = [[1], [1, 1, 1, 5_000], [700, 1, 3], [16, 2_000], [100_000], [1_023, 1_024, 1_025]]
  for (const round of ['whole reads', 'reads in parts', 'reads in parts, again']) {
    const all = patterns.map(async (first, nth) => {
      const sizes = [first, ...patterns.slice(nth)]
      const heads = sizes.map((_, n) => (n === sizes.length - 1 ? `${HEAD}connection: close\r\n` : HEAD))
      const socket = connect(port, '127.0.0.1')
      socket.write(heads.map((head, n) => `${head}\r\n${encode(body, sizes[n] ?? [])}`).join(''))
      const replies = (await text(socket)).split(/HTTP\/1\.1 200 OK[^]*?\r\n\r\n/).slice(1)
      assert.equal(replies.length, sizes.length, round)
      for (const reply of replies) assert.ok(reply === body, `${round}: ${String(reply.length)} characters`)
    })
    await Promise.all(all)
  }
})

test('a turn of the event loop reads few chunks of a body, once the first one had too many', async (t) => {
  const { port, requests } = await listen(t)
  await exchangeRaw(port, MANY_CHUNKS)
  const sending = Array.from({ length: 4 }, () => exchangeRaw(port, MANY_CHUNKS))
  let [longest, before] = [0, 0]
  const count = (): number => requests.slice(1).reduce((sum, request) => sum + request.chunkCount, 0)
  while (before < 4 * 10_000) {
    await new Promise(setImmediate)
    longest = Math.max(longest, count() - before)
    before = count()
  }
  await Promise.all(sending)
  assert.ok(longest < 4 * 1_024, `${String(longest)} chunks of four bodies in a turn`)
})

test('of a refused request, few chunks are read', async (t) => {
  const { port, requests } = await listen(t)
  await exchangeRaw(port, MANY_CHUNKS)
  const socket = connect(port, '127.0.0.1')
  socket.write(MANY_CHUNKS.replace('/', '/refuse').replace('close', 'keep-alive').repeat(3))
  while (requests.length < 2) await new Promise(setImmediate)
  for (let turn = 0; turn < 100; turn += 1) await new Promise(setImmediate)
  socket.destroy()
  assert.equal(requests.length, 2)
  assert.ok((requests[1]?.chunkCount ?? 0) < 1_024, `${String(requests[1]?.chunkCount)} chunks`)
})

test('a body that nobody reads is paced too, once its request was answered', async (t) => {
  const { port, requests } = await listen(t)
  await exchangeRaw(port, MANY_CHUNKS)
  const socket = connect(port, '127.0.0.1')
  socket.write(MANY_CHUNKS.replace('/', '/ignore').replace('close', 'keep-alive') + MANY_CHUNKS)
  assert.match(await text(socket), /ignored[^]*a{10000}$/)
  assert.deepEqual(
    requests.map(({ chunkCount }) => chunkCount),
    [10_000, 10_000, 10_000],
  )
})

test('a body whose reader has paused stays paused, after its turn too', async (t) => {
  const { port, requests } = await listen(t)
  const unit = encode('x'.repeat(80 * 700), [80]).slice(0, -'0\r\n\r\n'.length) // a read of it isn't parsed in parts
  const begin = (localAddress: string, head: string) => {
    const socket = connect({ port, host: '127.0.0.1', localAddress })
    t.after(() => socket.destroy())
    socket.write(`${head}\r\n`)
    return socket
  }
  const stopped = begin('127.0.0.1', HEAD.replace('/', '/stop'))
  while (requests.length < 1) await new Promise(setImmediate)
  const other = begin('127.0.0.2', HEAD)
  while (requests.length < 2) await new Promise(setImmediate)
  for (let turn = 1, sent = 0; turn <= 60; turn += 1) {
    other.write(unit)
    if (requests[0]?.chunkCount === sent * 700) stopped.write(unit, () => (sent += 1))
    while ((requests[1]?.chunkCount ?? 0) < turn * 700) await new Promise(setImmediate)
  }
  const kept = requests[0]?.readableLength ?? 0
  assert.ok(kept < 256 * 1024, `${String(kept)} bytes`)
})

test('a body arrives whole even after the server has closed its end of the connection', async (t) => {
  const { port, requests } = await listen(t)
  await exchangeRaw(port, MANY_CHUNKS)
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
  t.after(() => socket.destroy())
  socket.write(`${HEAD.replace('/', '/half-close')}\r\n`)
  await once(socket.resume(), 'end')
  socket.write(encode('b'.repeat(10_000), [100]))
  const [, request] = requests
  assert.ok(request !== undefined)
  assert.equal(await text(request), 'b'.repeat(10_000))
})

test('a connection is not idle while what was read of it is parsed in parts', async (t) => {
  const { port } = await listen(t)
  await exchangeRaw(port, MANY_CHUNKS)
  const slow = MANY_CHUNKS.replace('/', '/timeout')
  const replies = await Promise.all(Array.from({ length: 8 }, () => exchangeRaw(port, slow))) // takes longer than the timeout
  for (const reply of replies) assert.equal(reply?.status, 200)
})

test('bodies whose clients have gone take no turns', async (t) => {
  const { port, requests } = await listen(t)
  const part = '1\r\na\r\n'.repeat(600)
  const begin = async (localAddress: string, body: string) => {
    const nth = requests.length
    const socket = connect({ port, host: '127.0.0.1', localAddress })
    t.after(() => socket.destroy())
    socket.on('error', () => undefined).write(`${HEAD}\r\n${body}`)
    while ((requests[nth]?.chunkCount ?? 0) < 600) await new Promise(setImmediate)
    return { socket, request: requests[nth] }
  }
  const gone = []
  for (let nth = 0; nth < 64; nth += 1) gone.push(await begin('127.0.0.1', part))
  const patient = await begin('127.0.0.1', part)
  patient.socket.write('0\r\n\r\n')
  for (const { socket } of gone) socket.destroy()
  const other = await begin('127.0.0.2', part.repeat(40))
  while (patient.request?.complete !== true && other.request?.chunkCount !== 40 * 600) await new Promise(setImmediate)
  assert.ok(patient.request?.complete, 'it waited for those that had gone')
})

test('WebSockets and tunnels leave the pacer, those from before too', async (t) => {
  const { port } = await listen(t)
  const echo = async (webSocket: WebSocket, message: string): Promise<void> => {
    const answer = once(webSocket, 'message')
    webSocket.send(message)
    assert.equal(String((await answer)[0]), message)
  }
  const open = async (): Promise<WebSocket> => {
    const webSocket = new WebSocket(`ws://127.0.0.1:${String(port)}/`)
    await once(webSocket, 'open')
    return webSocket
  }
  const early = await open()
  await echo(early, 'early')
  await exchangeRaw(port, MANY_CHUNKS)
  const late = await open()
  for (const webSocket of [early, late]) await echo(webSocket, 'x'.repeat(100_000))
  const tunnel = connect(port, '127.0.0.1')
  tunnel.on('error', () => undefined).resume() // nobody serves tunnels
  tunnel.write(`CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n${'x'.repeat(10_000)}`)
  await once(tunnel, 'close')
  for (const webSocket of [early, late]) await echo(webSocket, 'still')
})
