import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect as connectHttp2, constants, performServerHandshake, type ClientHttp2Session } from 'node:http2'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { connect as connectTls } from 'node:tls'
import { after, test, type TestContext } from 'node:test'
import { makeConnectionMemory, type ConnectionMemory } from '../../../src/worker/egress/connection-memory.ts'
import { relay } from '../../../src/worker/egress/relay.ts'
import { makeCertificate } from '../../support/certificates.ts'
import { isFree, openInterceptor, openUpstream } from '../../support/intercept.ts'
import { waitUntil } from '../../support/wait.ts'

const MIB = 1024 * 1024
const TOO_MUCH = /the connections of the sandbox keep too much memory/
const PIECE = Buffer.alloc(65_536, 'x')

const folder = mkdtempSync(join(tmpdir(), 'memory-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])

test('each sandbox has its own bound, and what is released is free again', () => {
  const memoryOf = makeConnectionMemory(3 * MIB)
  const release = memoryOf('a').reserve(2 * MIB)
  assert.throws(() => memoryOf('a').reserve(2 * MIB), TOO_MUCH)
  memoryOf('b').reserve(3 * MIB)
  release()
  release()
  memoryOf('a').reserve(3 * MIB)
  assert.throws(() => memoryOf('a').reserve(1), TOO_MUCH)
})

test('connections whose sides do not read are ended beyond the bound of their sandbox, and those of others go on', async (t) => {
  const memoryOf = makeConnectionMemory(4 * MIB)
  const reasons: string[] = []
  const flooded = await openRelay(t, { memory: memoryOf('noisy'), onRefused: (reason) => reasons.push(reason) })
  for (let n = 0; n < 40; n++) flood(await flooded.open())
  // each direction that stalls keeps 128 KiB, so the bound is 32 of 80
  await waitUntil(() => reasons.length >= 24)
  for (const reason of reasons) assert.match(reason, TOO_MUCH)
  const quiet = await openRelay(t, { memory: memoryOf('quiet'), onRefused: assert.fail })
  const client = await quiet.open()
  await once(client, 'data')
  client.destroy()
  flooded.close()
  await waitUntil(() => isFree(memoryOf('noisy'), 4 * MIB) && isFree(memoryOf('quiet'), 4 * MIB))
})

test('unfinished heads are bounded in intercepted connections, and so are responses that nobody reads', async (t) => {
  const upstream = await openUpstream(t, certificate, (socket) => {
    socket.once('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n')
      flood(socket)
    })
  })
  const options = { upstreamPort: upstream.port, caFile: certificate.caFile, secrets: [], memoryBytes: 4 * MIB }
  const head = 'GET / HTTP/1.1\r\nHost: api.test\r\n'
  for (const { text, event } of [
    { text: `${head}x: ${'a'.repeat(60_000)}`, event: 'secureConnect' },
    { text: `${head}\r\n`, event: 'data' },
  ]) {
    const interceptor = await openInterceptor(t, options)
    for (let n = 0; n < 40; n++) {
      const client = connectTls({
        port: interceptor.port,
        host: '127.0.0.1',
        servername: 'api.test',
        ca: interceptor.ca,
      })
      endWith(t, client)
      const ended = once(client, 'close').catch(() => undefined)
      client.write(text)
      await Promise.race([once(client, event).catch(() => undefined), ended])
      client.pause()
    }
    await waitUntil(() => interceptor.refused.length > 0)
    for (const { message } of interceptor.refused) assert.match(message, TOO_MUCH)
  }
})

test('heads of HTTP/2 streams are bounded, of requests without an answer and of endless informational responses', async (t) => {
  const upstream = await openUpstream(t, certificate, (socket) => {
    const session = performServerHandshake(socket)
    session.on('error', () => session.destroy())
    session.on('stream', (stream, headers) => {
      stream.on('error', () => stream.destroy())
      const inform = (): void => {
        if (stream.destroyed) return
        stream.additionalHeaders({ ':status': 103, link: 'a'.repeat(8_000) })
        setImmediate(inform)
      }
      if (headers[':path'] === '/inform') inform()
    })
  })
  const options = { upstreamPort: upstream.port, caFile: certificate.caFile, secrets: [], memoryBytes: 4 * MIB }
  for (const [count, path] of [
    [200, '/'],
    [1, '/inform'],
  ] as const) {
    const interceptor = await openInterceptor(t, options)
    const client = openHttp2(t, interceptor)
    for (let n = 0; n < count; n++)
      client.request({ ':path': path, 'x-long': 'a'.repeat(20_000) }).on('error', () => undefined)
    await waitUntil(() => interceptor.refused.length > 0)
    for (const { message } of interceptor.refused) assert.match(message, TOO_MUCH)
  }
})

test('heads of HTTP/2 streams that the client resets count until their server has taken them', async (t) => {
  const upstream = await openUpstream(t, certificate, (socket) => {
    const session = performServerHandshake(socket, { settings: { maxConcurrentStreams: 1 } })
    session.on('error', () => session.destroy())
    session.on('stream', (stream) => {
      stream.on('error', () => stream.destroy())
      stream.additionalHeaders({ ':status': 103 })
    })
  })
  const options = { upstreamPort: upstream.port, caFile: certificate.caFile, secrets: [], memoryBytes: 4 * MIB }
  const interceptor = await openInterceptor(t, options)
  const client = openHttp2(t, interceptor)
  const open = () => client.request({ ':path': '/', 'x-long': 'a'.repeat(20_000) }).on('error', () => undefined)
  await once(open(), 'headers') // the only stream that the server allows
  for (let n = 0; n < 400 && !client.destroyed; n++) {
    const stream = open()
    stream.close(constants.NGHTTP2_CANCEL)
    await new Promise(setImmediate)
  }
  await waitUntil(() => interceptor.refused.length > 0)
  for (const { message } of interceptor.refused) assert.match(message, TOO_MUCH)
})

type RelayOptions = { readonly memory: ConnectionMemory; readonly onRefused: (reason: string) => void }

/** Relays connections to a server that sends as much as it can and reads nothing. */
async function openRelay(t: TestContext, { memory, onRefused }: RelayOptions) {
  const sockets = new Set<Socket>()
  const keep = (socket: Socket): Socket => {
    sockets.add(socket)
    return socket.on('error', () => socket.destroy())
  }
  const close = (): void => {
    for (const socket of sockets) socket.destroy()
  }
  t.after(close)
  const server = createServer((socket) => {
    flood(keep(socket))
  }).listen(0, '127.0.0.1')
  const port = async (of: typeof server): Promise<number> => {
    if (!of.listening) await once(of, 'listening')
    t.after(() => of.close())
    return (of.address() as AddressInfo).port
  }
  const serverPort = await port(server)
  const relaying = createServer({ allowHalfOpen: true }, (client) => {
    const upstream = keep(connect({ port: serverPort, host: '127.0.0.1', allowHalfOpen: true }))
    relay(keep(client), upstream, {
      secrets: null,
      memory,
      turn: () => Promise.resolve(),
      onRefused: ({ message }) => onRefused(message),
    })
  }).listen(0, '127.0.0.1')
  const relayPort = await port(relaying)
  const open = async (): Promise<Socket> => {
    const client = keep(connect(relayPort, '127.0.0.1'))
    await once(client, 'connect')
    return client
  }
  return { open, close }
}

/** Writes as much as fits, again and again, and reads nothing. */
function flood(socket: Duplex): void {
  socket.pause()
  const write = (): void => {
    while (!socket.destroyed && socket.write(PIECE));
  }
  socket.on('drain', write)
  write()
}

function openHttp2(t: TestContext, { port, ca }: { readonly port: number; readonly ca: string }): ClientHttp2Session {
  const client = connectHttp2('https://api.test', {
    createConnection: () => connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca }),
  })
  client.on('error', () => client.destroy())
  t.after(() => {
    client.destroy()
  })
  return client
}

function endWith(t: TestContext, socket: Duplex): void {
  socket.on('error', () => socket.destroy())
  t.after(() => {
    socket.destroy()
  })
}
