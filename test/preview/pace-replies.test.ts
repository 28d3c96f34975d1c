import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer as createHttpServer, get, type IncomingMessage, type ServerResponse } from 'node:http'
import { connect, createServer as createTcpServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { proxyRequest, proxyUpgrade, type ProxiedRequest } from '../../src/preview/proxy-request.ts'
import { makeSandboxConnections } from '../../src/preview/sandbox-connections.ts'
import { countPerTurn } from '../support/most-per-turn.ts'

async function listen(t: TestContext, server: Server): Promise<number> {
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  return (server.address() as AddressInfo).port
}

/** A proxy before a sandbox that calls `answer` for each read of a connection. */
async function makeProxy(t: TestContext, answer: (socket: Socket, nth: number) => void) {
  const sockets: Socket[] = []
  const sandbox = createTcpServer((socket) => {
    sockets.push(socket.on('error', () => undefined))
    let reads = 0
    socket.on('data', () => answer(socket, reads++))
  })
  const sandboxPort = await listen(t, sandbox)
  const pacer = makePiecePacer(0)
  const perTurn = countPerTurn()
  let pieces = 0
  const connections = makeSandboxConnections<{ readonly run: string }>({
    clock: systemClock,
    connect: async () => {
      const socket = connect(sandboxPort, '127.0.0.1')
      await once(socket, 'connect')
      return socket
    },
    paceOf: () => {
      const pace = pacer.paceOf('org')
      const count = (): boolean => {
        pieces += 1
        perTurn.count()
        return pace.count()
      }
      return { ...pace, count }
    },
  })
  const proxied = (request: IncomingMessage): ProxiedRequest & { readonly release: () => void } => {
    const used = connections.use({ run: 'run' })
    assert.ok(used !== null)
    const forwarded = { address: undefined, scheme: 'http', host: 'x', hidesAuthorization: false } as const
    return { ...used, request, path: '/', port: 80, forwarded, signal: new AbortController().signal }
  }
  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { release, ...rest } = proxied(request)
    await proxyRequest(rest, response).catch((error: unknown) => response.writeHead(502).end(String(error)))
    release()
  }
  const server = createHttpServer((request, response) => void serve(request, response))
  server.on('upgrade', (request: IncomingMessage, socket: Socket, head: Buffer) => {
    const { release, ...rest } = proxied(request)
    void proxyUpgrade(rest, socket, head).finally(release)
  })
  t.after(() => {
    connections.close()
    for (const socket of sockets) socket.destroy()
    server.closeAllConnections()
  })
  return { port: await listen(t, server), sockets, perTurn, pieces: () => pieces }
}

const HEAD = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n'

async function ask(port: number, headers: Record<string, string> = {}): Promise<IncomingMessage> {
  const [reply] = await once(get({ port, host: '127.0.0.1', agent: false, headers }), 'response')
  return reply
}

/** Chunks whose sizes are taken in turn. */
function encode(body: string, sizes: readonly number[]): string {
  const chunks: string[] = []
  for (let at = 0, nth = 0; at < body.length; nth += 1) {
    const chunk = body.slice(at, at + (sizes[nth % sizes.length] ?? 1))
    chunks.push(`${chunk.length.toString(16)}\r\n${chunk}\r\n`)
    at += chunk.length
  }
  return `${chunks.join('')}0\r\n\r\n`
}

test('replies in chunks of a byte are read in several turns, those of several connections together', async (t) => {
  const body = 'abcdefghij'.repeat(2_000)
  const { port, perTurn, pieces } = await makeProxy(t, (socket) => socket.write(`${HEAD}${encode(body, [1])}`))
  const replies = await Promise.all(Array.from({ length: 4 }, async () => text(await ask(port))))
  for (const reply of replies) assert.equal(reply, body)
  assert.ok(pieces() >= 4 * body.length)
  // Each of the other connections may end its part, in which 16 KiB have 2,730 chunks.
  assert.ok(perTurn.most() <= 512 + 2_731, `${String(perTurn.most())} chunks in a turn`)
})

test('replies in chunks of any sizes arrive whole, one after another on one connection', async (t) => {
  const body = Array.from({ length: 30_000 }, (_, n) => `${String(n)} `).join('')
  const patterns = [[1, 5_000], [700, 1, 3], [100_000], [1_023, 1_024, 1_025], [16, 70_000]]
  const { port, sockets } = await makeProxy(t, (socket, nth) =>
    socket.write(`${HEAD}${encode(body, patterns[nth % patterns.length] ?? [])}`),
  )
  for (const _ of [...patterns, ...patterns]) assert.equal(await text(await ask(port)), body)
  assert.equal(sockets.length, 1)
})

test('a client that reads its reply late gets all of it, also if the sandbox has ended the connection', async (t) => {
  const body = 'x'.repeat(300_000)
  const { port, pieces } = await makeProxy(t, (socket) => socket.end(`HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n${encode(body, [3, 2_000])}`)) // prettier-ignore
  const reply = await ask(port)
  while (pieces() < 20) await new Promise((resolve) => setImmediate(resolve))
  assert.equal(await text(reply), body)
})

test('a sandbox may send a few replies before the real one, and is cut off after many', async (t) => {
  const early = 'HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n'
  const real = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'
  const few = await makeProxy(t, (socket) => socket.write(`${early.repeat(16)}${real}`))
  assert.equal(await text(await ask(few.port)), 'ok')
  const many = await makeProxy(t, (socket) => socket.write(`${early.repeat(5_000)}${real}`))
  const reply = await ask(many.port)
  assert.deepEqual([reply.statusCode, await text(reply)], [502, 'Error: too many informational replies'])
  assert.ok(many.pieces() <= 1_024 / early.length + 1, `${String(many.pieces())} were read`)
})

test('what follows the reply to an upgrade arrives whole, whatever comes with it', async (t) => {
  const bytes = 'abcdefg\r\n'.repeat(50_000)
  const { port } = await makeProxy(t, (socket) => socket.end(`HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n${bytes}`)) // prettier-ignore
  const client = connect(port, '127.0.0.1')
  client.write('GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n')
  const all = await text(client)
  assert.ok(all.startsWith('HTTP/1.1 101'))
  assert.equal(all.slice(all.indexOf('\r\n\r\n') + 4), bytes)
})
