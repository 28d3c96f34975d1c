import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { gzipSync } from 'node:zlib'
import { WebSocket } from 'ws'
import type { ConnectionLimits } from '../../../src/http/connections/limit-connections.ts'
import { DEFAULT_SERVER_SETTINGS, type ServerSettings } from '../../../src/http/server/server.ts'
import type { UseCases } from '../../support/use-cases.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { openChannelOver } from '../../support/channel.ts'
import { collectGarbage } from '../../support/collect-garbage.ts'
import { asCaller, KEY, makeHttpWorld, SANDBOX_ID, theSandbox } from '../../support/http-world.ts'
import { exchangeRaw, firstReply, openConnection } from '../../support/raw-http.ts'
import { waitUntil } from '../../support/wait.ts'

async function listen(t: TestContext, settings: Partial<ServerSettings> = {}, useCases: Partial<UseCases> = {}) {
  const app = makeHttpWorld({ useCases, server: { settings: { ...DEFAULT_SERVER_SETTINGS, ...settings } } })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.after(() => app.close())
  const isServing = async (): Promise<boolean> => {
    const reply = await fetch(`${url}/v1/sandboxes/${SANDBOX_ID}`, { headers: asCaller })
    return reply.status === 200 && Object(await reply.json()).id === SANDBOX_ID
  }
  return { app, url, port: Number(new URL(url).port), isServing }
}

const AUTH = `host: x\r\nauthorization: Bearer ${KEY}\r\n`
const JSON_HEAD = `POST /v1/sandboxes HTTP/1.1\r\n${AUTH}content-type: application/json\r\n`
const GET = `GET /v1/sandboxes/${SANDBOX_ID} HTTP/1.1\r\n${AUTH}`
const chunked = (chunks: string): string => `${JSON_HEAD}transfer-encoding: chunked\r\n\r\n${chunks}`
const list = (query: string): string => `GET /v1/sandboxes?${query} HTTP/1.1\r\n${AUTH}\r\n`
const path = (text: string): string => `GET ${text} HTTP/1.1\r\n${AUTH}\r\n`
const gzipped = gzipSync(Buffer.alloc(64 * 1024 * 1024))

/** A request: a description, the bytes, and the statuses with which the server may answer. */
type Attack = readonly [what: string, bytes: string | Buffer, statuses: readonly number[]]

const A_BYTE_IN_EACH_CHUNK: Attack = ['a byte in each chunk', chunked('1\r\n \r\n'.repeat(100_000)), [400]]
const ATTACKS: readonly Attack[] = [
  ['a length and chunks', `${JSON_HEAD}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n`, [400]],
  ['chunks and a length', `${JSON_HEAD}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n`, [400]],
  ['two lengths', `${JSON_HEAD}content-length: 2\r\ncontent-length: 4\r\n\r\n{}`, [400]],
  ['a list of lengths', `${JSON_HEAD}content-length: 2, 2\r\n\r\n{}`, [400]],
  ['a signed length', `${JSON_HEAD}content-length: +2\r\n\r\n{}`, [400]],
  ['a negative length', `${JSON_HEAD}content-length: -2\r\n\r\n{}`, [400]],
  ['a length beyond all numbers', `${JSON_HEAD}content-length: 99999999999999999999999\r\n\r\n{}`, [400]],
  ['a length beyond the limit', `${JSON_HEAD}content-length: 99999999999\r\n\r\n{}`, [413]],
  ['an unknown transfer coding', `${JSON_HEAD}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n`, [400]],
  ['chunks that are not last', `${JSON_HEAD}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n`, [400]],
  ['a folded header', `${JSON_HEAD}x-a: b\r\n content-length: 2\r\n\r\n{}`, [400]],
  ['a blank before a colon', `${JSON_HEAD}content-length : 2\r\n\r\n{}`, [400]],
  ['a NUL in a header', `${GET}x-a: b\0c\r\n\r\n`, [400]],
  ['lines without a return', `GET / HTTP/1.1\nhost: x\n\n`, [400, 404]],
  ['a chunk size beyond all numbers', chunked('fffffffffffffffff\r\n'), [400]],
  ['a chunk size that is none', chunked('-1\r\n'), [400]],
  ['a chunk longer than its size', chunked('1\r\n{}\r\n0\r\n\r\n'), [400]],
  ['an endless chunk extension', chunked(`2;${'a'.repeat(40_000)}\r\n{}\r\n0\r\n\r\n`), [400, 413]],
  ['a large trailer', chunked(`2\r\n{}\r\n0\r\nx-a: ${'a'.repeat(40_000)}\r\n\r\n`), [400]],
  ['a large header', `${GET}x-a: ${'a'.repeat(40_000)}\r\n\r\n`, [400]],
  ['many headers', `${GET}${Array.from({ length: 5_000 }, (_, n) => `h${String(n)}: x\r\n`).join('')}\r\n`, [400]],
  ['a long path', path(`/${'a'.repeat(40_000)}`), [400]],
  ['no host', 'GET /healthz HTTP/1.1\r\n\r\n', [400]],
  ['an expectation', `${JSON_HEAD}expect: the worst\r\ncontent-length: 2\r\n\r\n{}`, [400]],
  ['a tunnel', 'CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: x\r\n\r\n', [400]],
  ['HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', [400]],
  ['HTTP/0.9', 'GET /\r\n\r\n', [400, 404]],
  ['HTTP/9.9', 'GET / HTTP/9.9\r\nhost: x\r\n\r\n', [400]],
  ['TLS', Buffer.from('16030100c8010000c40303', 'hex'), [400]],
  ['random bytes', Buffer.from(Array.from({ length: 512 }, (_, n) => (n * 97) % 256)), [400]],
  ['a method that nobody knows', `EXPLODE / HTTP/1.1\r\n${AUTH}\r\n`, [400]],
  ['a compression bomb', Buffer.concat([Buffer.from(`${JSON_HEAD}content-encoding: gzip\r\ncontent-length: ${String(gzipped.length)}\r\n\r\n`), gzipped]), [415]],
  ['another charset', `${JSON_HEAD.replace('json', 'json; charset=utf-16')}content-length: 2\r\n\r\n{}`, [415]],
  ['a path that leads up', path('/v1/sandboxes/%2e%2e/%2e%2e/etc/passwd'), [404]],
  ['an encoded slash', path('/v1/sandboxes%2f..%2f'), [400, 404]],
  ['an encoded NUL', path('/v1/sandboxes/by-name/a%00b'), [400, 404]],
  ['half a percent', path('/v1/sandboxes/by-name/%'), [400]],
  ['bytes that are not UTF-8', path('/v1/sandboxes/by-name/%ff%fe'), [400]],
  ['overlong UTF-8', path('/v1/sandboxes/by-name/%c0%af'), [400]],
  ['a long parameter', path(`/v1/sandboxes/by-name/${'a'.repeat(4_000)}`), [400]],
  ['many parameters', list(Array.from({ length: 3_000 }, (_, n) => `a${String(n)}`).join('&')), [400]],
  ['a parameter twice', list('limit=1&limit=2'), [400]],
  ['a parameter of the prototype', list('__proto__=1&constructor=2'), [400]],
  ['a number beyond all', list(`limit=${'9'.repeat(5_000)}`), [400]],
  ['a filter of many labels', list(`labels=${encodeURIComponent(JSON.stringify(Object.fromEntries(Array.from({ length: 100 }, (_, n) => [`k${String(n)}`, '']))))}`), [400]],
  ['a body for no route', `POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n`, [404]],
] // prettier-ignore

test('a request that this API does not serve is refused in the error envelope before its body arrives, and others are served meanwhile', async (t) => {
  const { port, isServing } = await listen(t)
  const all = [...ATTACKS, A_BYTE_IN_EACH_CHUNK, ...ATTACKS] // after it, the server parses what it reads in parts
  for (const [what, bytes, statuses] of all) {
    const reply = await exchangeRaw(port, bytes)
    assert.ok(reply !== null, `${what}: closed without a reply`)
    assert.ok(statuses.includes(reply.status), `${what}: ${String(reply.status)} ${reply.body}`)
    assert.equal(typeof JSON.parse(reply.body).error.code, 'string', what)
  }
  assert.ok(await isServing())
})

test('a body of many small chunks is read, and one of far too many is refused', async (t) => {
  const { port } = await listen(t)
  const blanks = (count: number): string => chunked(`${'1\r\n \r\n'.repeat(count)}2\r\n{}\r\n0\r\n\r\n`)
  const read = await exchangeRaw(port, blanks(17_000))
  assert.match(read?.body ?? '', /invalid request: image/)
  const refused = await exchangeRaw(port, blanks(1_000_000))
  assert.match(refused?.body ?? '', /invalid request: body is a body in more chunks; accepted: at most 17408 chunks/)
})

test('the body of one request is never read as another request', async (t) => {
  const { port } = await listen(t)
  const inner = `GET /v1/me/org HTTP/1.1\r\n${AUTH}\r\n`
  for (const head of [GET, `GET /healthz HTTP/1.1\r\nhost: x\r\n`, `GET /nothing HTTP/1.1\r\nhost: x\r\n`]) {
    const connection = openConnection(port)
    connection.socket.write(`${head}content-length: ${String(inner.length)}\r\nconnection: close\r\n\r\n${inner}`)
    await waitUntil(() => connection.isClosed())
    assert.equal(connection.received().split('HTTP/1.1 ').length - 1, 1, connection.received())
  }
})

test('HTTP/1.0 is answered and its connection closed, and a client that waits for 100-continue gets it before the reply', async (t) => {
  const { port } = await listen(t)
  const old = openConnection(port)
  old.socket.write(`GET /v1/sandboxes/${SANDBOX_ID} HTTP/1.0\r\nauthorization: Bearer ${KEY}\r\n\r\n`)
  await waitUntil(() => old.isClosed())
  assert.match(old.received(), /^HTTP\/1\.1 200 /)
  const asking = openConnection(port)
  asking.socket.write(`${JSON_HEAD}expect: 100-continue\r\ncontent-length: 2\r\n\r\n`)
  await waitUntil(() => asking.received().startsWith('HTTP/1.1 100 '))
  asking.socket.write('{}')
  assert.equal((await waitUntil(() => firstReply(asking.received()) ?? undefined)).status, 400)
  asking.socket.destroy()
})

test('a client that sends nothing, or sends a head or body too slowly, is disconnected in time, with a refusal if possible', async (t) => {
  const { port, isServing } = await listen(t, { headTimeoutMs: 300, requestTimeoutMs: 600 })
  const slow: readonly (readonly [string, string])[] = [
    ['', ''],
    ['GET /healthz HTTP/1.1\r\n', 'x'],
    [`${JSON_HEAD}content-length: 100000\r\n\r\n`, ' '],
    [`${JSON_HEAD}transfer-encoding: chunked\r\n\r\n`, '1\r\n \r\n'],
  ]
  const connections = slow.map(([head, dribble]) => {
    const connection = openConnection(port)
    connection.socket.write(head)
    const dribbling = setInterval(() => {
      if (dribble !== '') connection.socket.write(dribble)
    }, 50)
    connection.socket.once('close', () => {
      clearInterval(dribbling)
    })
    return connection
  })
  for (const connection of connections) await waitUntil(() => connection.isClosed())
  for (const { received } of connections) assert.match(received(), /^HTTP\/1\.1 400 [^]*invalid_request/)
  assert.ok(await isServing())
})

test('the connection of a refused client is closed even if the client keeps its side open', async (t) => {
  const { port } = await listen(t)
  const connection = openConnection(port)
  connection.socket.pause() // so the client never notices that the server has ended its side
  connection.socket.write('nonsense\r\n\r\n')
  const { socket } = connection
  await waitUntil(() => {
    socket.write('x') // the kernel answers with a reset once the server has closed the connection
    return connection.isClosed()
  })
})

test('a client that sends requests and reads no replies is soon not served any more, and its connection is closed', async (t) => {
  const REQUESTS = 5 // one, and as many as may wait for it; their replies fill all buffers several times
  const spec_json = JSON.stringify({ padding: 'x'.repeat(4_000_000) })
  let served = 0
  const getSandbox: UseCases['getSandbox'] = () => {
    served += 1
    return Promise.resolve({ ...theSandbox, spec_json })
  }
  const connections: ConnectionLimits = { ...DEFAULT_SERVER_SETTINGS.connections, checkIntervalMs: 100 }
  const { port, isServing } = await listen(t, { connections }, { getSandbox })
  const { socket, isClosed } = openConnection(port)
  socket.pause()
  socket.write(`${GET}\r\n`.repeat(REQUESTS))
  await waitUntil(() => {
    socket.write('\r\n') // no request; answered by a reset once the connection is gone
    return isClosed()
  }, 60_000)
  assert.ok(served < REQUESTS / 2, `${String(served)} were served`)
  assert.ok(await isServing())
})

test('pipelined requests are served one after the other, in order, and too many of them close the connection without being parsed', async (t) => {
  let atOnce = 0
  let most = 0
  const getSandbox: UseCases['getSandbox'] = async (_caller, ref) => {
    most = Math.max(most, (atOnce += 1))
    await systemClock.sleep(5)
    atOnce -= 1
    return { ...theSandbox, name: 'name' in ref ? ref.name : '' }
  }
  const { app, port } = await listen(t, {}, { getSandbox })
  const get = (n: number): string => path(`/v1/sandboxes/by-name/n${String(n)}`)
  const few = openConnection(port)
  few.socket.write(Array.from({ length: 5 }, (_, n) => get(n)).join(''))
  const names = (): readonly string[] => [...few.received().matchAll(/"name":"(n\d+)"/g)].map(([, name]) => name ?? '')
  await waitUntil(() => names().length === 5)
  assert.deepEqual(names(), ['n0', 'n1', 'n2', 'n3', 'n4'])
  assert.equal(most, 1)
  few.socket.destroy()
  let parsed = 0
  app.server.on('request', () => void (parsed += 1))
  const many = openConnection(port)
  many.socket.write(Array.from({ length: 100 }, (_, n) => get(n)).join(''))
  const { stackTraceLimit } = Error
  await waitUntil(() => many.isClosed())
  assert.deepEqual([Error.stackTraceLimit, stackTraceLimit > 0], [stackTraceLimit, true])
  assert.ok(parsed < 8, `${String(parsed)} of the requests of one read were parsed`)
})

test('requests that waited on a closed connection leave the memory while an earlier one of it is served', async (t) => {
  const served = Promise.withResolvers<void>()
  const getSandbox: UseCases['getSandbox'] = async () => {
    await served.promise
    return theSandbox
  }
  const { app, port } = await listen(t, {}, { getSandbox })
  const parsed: WeakRef<object>[] = []
  app.server.on('request', (request) => parsed.push(new WeakRef(request)))
  const many = openConnection(port)
  many.socket.write(`${GET}\r\n`.repeat(100))
  await waitUntil(() => many.isClosed())
  await collectGarbage()
  const kept = parsed.filter((request) => request.deref() !== undefined)
  assert.ok(parsed.length > 4 && kept.length < 3, `${String(kept.length)} of ${String(parsed.length)} are in memory`)
  served.resolve()
})

test('of a large body whose request is refused, only a part is read, and its connection is closed once the client could read the refusal', async (t) => {
  const { app, port, isServing } = await listen(t)
  const refused: readonly (readonly [what: string, head: string, status: number])[] = [
    ['no valid key', JSON_HEAD.replace(KEY, 'none'), 401],
    ['too large', JSON_HEAD, 413],
    ['no route', JSON_HEAD.replace('/v1/sandboxes', '/v1/nothing'), 404],
  ]
  const served: Socket[] = []
  app.server.on('connection', (socket: Socket) => served.push(socket))
  const ask = async ([what, head, status]: (typeof refused)[number]): Promise<void> => {
    const { socket, received, isClosed } = openConnection(port)
    socket.allowHalfOpen = true // it goes on sending although the server has ended its side
    socket.write(`${head}content-length: 1000000000\r\n\r\n`)
    const reply = await waitUntil(() => firstReply(received()) ?? undefined)
    assert.equal(reply.status, status, what)
    assert.match(reply.head, /^connection: close$/im, what)
    const piece = Buffer.alloc(64 * 1024, ' ')
    await waitUntil(() => {
      if (socket.writable && socket.writableLength < 4 * piece.length) socket.write(piece)
      return isClosed()
    })
  }
  await Promise.all(refused.map(ask))
  const readBytes = served.map(({ bytesRead }) => bytesRead)
  assert.ok(Math.max(...readBytes) < 1024 * 1024, `${readBytes.join(', ')} bytes were read`)
  assert.ok(await isServing())
})

test('a connection is used further after a refused request whose body is small', async (t) => {
  const { port } = await listen(t)
  const { socket, received } = openConnection(port)
  socket.write(`${JSON_HEAD.replace(KEY, 'none')}content-length: 2\r\n\r\n`)
  await waitUntil(() => received().startsWith('HTTP/1.1 401 '))
  socket.write(`{}${GET}\r\n`)
  await waitUntil(() => received().includes('HTTP/1.1 200 '))
  socket.destroy()
})

test('of a large reply that nobody reads, little more than what the connection takes is in memory', async (t) => {
  const spec_json = JSON.stringify({ padding: 'x'.repeat(4_000_000) }) // more than the kernel takes
  const getSandbox: UseCases['getSandbox'] = () => Promise.resolve({ ...theSandbox, spec_json })
  const { app, port, isServing } = await listen(t, {}, { getSandbox })
  const served = once(app.server, 'connection')
  const { socket } = openConnection(port)
  socket.pause()
  socket.write(`${GET}\r\n`.repeat(5))
  const [connection] = await served
  let lastBytes = 0
  await waitUntil(() => {
    const isStalled = connection.writableLength > 0 && connection.bytesWritten === lastBytes
    lastBytes = connection.bytesWritten
    return isStalled
  })
  assert.ok(connection.writableLength < 256 * 1024, `${String(connection.writableLength)} bytes wait`)
  assert.ok(await isServing())
  socket.destroy()
})

test('connections are limited for each address and in total, and an address at its limit does not affect others', async (t) => {
  const connections = { ...DEFAULT_SERVER_SETTINGS.connections, capacity: 6, perAddress: 3 }
  const { port } = await listen(t, { connections })
  const open = ['127.0.0.2', '127.0.0.2', '127.0.0.2', '127.0.0.3'].map((address) => openConnection(port, address))
  await Promise.all(open.map(({ socket }) => once(socket, 'connect')))
  const fourth = openConnection(port, '127.0.0.2')
  await waitUntil(() => fourth.isClosed())
  const refused = firstReply(fourth.received())
  assert.equal(refused?.status, 429)
  assert.equal(JSON.parse(refused?.body ?? '').error.details.limit, 'connections_per_address')
  assert.equal((await exchangeRaw(port, 'GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n'))?.status, 200)
  const more = ['127.0.0.4', '127.0.0.5'].map((address) => openConnection(port, address))
  await Promise.all(more.map(({ socket }) => once(socket, 'connect')))
  const seventh = openConnection(port, '127.0.0.6')
  await waitUntil(() => seventh.isClosed())
  assert.equal(JSON.parse(firstReply(seventh.received())?.body ?? '').error.details.limit, 'connections')
  for (const { socket } of [...open, ...more]) socket.destroy()
  await waitUntil(async () => (await exchangeRaw(port, 'GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n'))?.status === 200)
})

/** A frame of a client, masked with zeros (RFC 6455, 5.2). */
function frame(opcode: number, payload: Buffer, isLast = true): Buffer {
  return Buffer.concat([Buffer.from([(isLast ? 0x80 : 0) | opcode, 0x80 | payload.length, 0, 0, 0, 0]), payload])
}

const FLOODS: readonly (readonly [what: string, frames: Buffer, times: number])[] = [
  ['a message of endless tiny pieces', frame(0, Buffer.from('x'), false), 100_000],
  ['a message of endless empty pieces', frame(0, Buffer.alloc(0), false), 100_000],
  ['pings whose answers nobody reads', frame(9, Buffer.alloc(125)), 800_000],
]

test('a WebSocket that is flooded with pieces, or with pings whose answers nobody reads, is closed before it fills memory', async (t) => {
  const useCases: Partial<UseCases> = { openChannel: () => openChannelOver(new PassThrough().resume()) }
  const { url, isServing } = await listen(t, {}, useCases)
  for (const [what, bytes, times] of FLOODS) {
    const client = new WebSocket(`${url.replace('http', 'ws')}/v1/sandboxes/${SANDBOX_ID}/agent`, { headers: asCaller })
    client.on('error', () => client.terminate())
    const upgraded = once(client, 'upgrade')
    await once(client, 'open')
    const [{ socket }] = await upgraded
    socket.on('error', () => socket.destroy())
    if (what.startsWith('pings')) client.pause()
    else socket.write(frame(2, Buffer.from('x'), false))
    const before = process.memoryUsage.rss()
    const thousand = Buffer.concat(Array<Buffer>(1_000).fill(bytes))
    for (let sent = 0; sent < times && !socket.destroyed; sent += 1_000) {
      if (!socket.write(thousand)) await systemClock.sleep(1)
    }
    await waitUntil(() => {
      if (!socket.destroyed) socket.write(bytes)
      return socket.destroyed || client.readyState === client.CLOSED
    }, 60_000)
    const grownMib = (process.memoryUsage.rss() - before) / 1024 / 1024
    // The growth includes the memory of the client, which runs in the same process.
    assert.ok(grownMib < 400, `${what}: ${String(grownMib)} MiB`)
    client.terminate()
  }
  assert.ok(await isServing())
})
