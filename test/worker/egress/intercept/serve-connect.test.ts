import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer as createHttpServer } from 'node:http'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test, type TestContext } from 'node:test'
import { connect as connectTls } from 'node:tls'
import type { RunSecret } from '../../../../src/domain/spec/secrets.ts'
import { makeCertificate } from '../../../support/certificates.ts'
import {
  openInterceptor,
  openUpstream,
  testSecret,
  type Interceptor,
  type Upstream,
} from '../../../support/intercept.ts'
import { waitUntil } from '../../../support/wait.ts'

const folder = mkdtempSync(join(tmpdir(), 'connect-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])
const elsewhere = { allowed_hosts: [{ type: 'exact', value: 'x.test' }] } as const

type World = { readonly interceptor: Interceptor; readonly upstream: Upstream; readonly proxied: () => string }

/** A proxy whose tunnels all lead to one TLS server, whatever host they name. */
async function openWorld(
  t: TestContext,
  secrets: readonly RunSecret[],
  allowsHost: (host: string) => boolean = () => true,
): Promise<World> {
  const http = createHttpServer((incoming, outgoing) => {
    incoming.resume().on('end', () => outgoing.end('hello'))
  })
  const upstream = await openUpstream(t, certificate, (socket) => http.emit('connection', socket))
  let proxied = ''
  const proxy = createServer((client) => {
    client.on('error', () => client.destroy())
    let server: Socket | null = null
    client.on('data', (bytes) => {
      proxied += bytes.toString('latin1')
      if (server !== null) return void server.write(bytes)
      if (proxied.includes('denied')) return void client.end('HTTP/1.1 407 No\r\nContent-Length: 2\r\n\r\nno')
      server = connect(upstream.port, '127.0.0.1', () => client.write('HTTP/1.1 200 Established\r\nVia: x\r\n\r\n'))
      server.on('error', () => client.destroy())
      server.pipe(client)
      client.on('close', () => server?.destroy())
    })
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.after(() => proxy.close())
  const { port: upstreamPort } = proxy.address() as AddressInfo
  const { caFile } = certificate
  const sni = { sni: 'proxy.test', tiedNames: ['proxy.test'] }
  const interceptor = await openInterceptor(t, { upstreamPort, caFile, secrets, isPlain: true, allowsHost, ...sni })
  return { interceptor, upstream, proxied: () => proxied }
}

/** Sends CONNECT, and returns the connection with the reply to it. */
async function openTunnel(t: TestContext, { interceptor: { port } }: World, head: string) {
  const socket = connect(port, '127.0.0.1')
  t.after(() => socket.destroy())
  socket.on('error', () => socket.destroy())
  socket.write(head)
  const reply = await new Promise<string>((resolve) => {
    socket.once('data', (bytes) => {
      resolve(bytes.toString())
    })
    socket.once('close', () => {
      resolve('')
    })
  })
  return { socket, reply }
}

const CONNECT = 'CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\nProxy-Authorization: Basic dTpw\r\n\r\n'
const GET = 'GET / HTTP/1.1\r\nHost: api.test\r\nX-Key: $MSB_KEY\r\nConnection: close\r\n\r\n'

async function readAll(socket: Socket): Promise<string> {
  return Buffer.concat(await socket.toArray()).toString()
}

test('a tunnel to an intercepted port gets values inside its TLS, without a tie by DNS', async (t) => {
  const world = await openWorld(t, [testSecret()])
  const { socket, reply } = await openTunnel(t, world, CONNECT)
  assert.equal(reply, 'HTTP/1.1 200 Established\r\nVia: x\r\n\r\n')
  const inner = connectTls({ socket, servername: 'api.test', ca: world.interceptor.ca })
  inner.write(GET)
  assert.match(await readAll(inner), /^HTTP\/1.1 200 OK[^]*hello/)
  assert.match(world.upstream.received(), /X-Key: the-real-value/)
  assert.ok(world.proxied().startsWith(CONNECT))
})

test('another server name than that of CONNECT ends the tunnel, and a denied host gets none', async (t) => {
  const world = await openWorld(t, [testSecret()], (host) => host !== 'evil.test')
  const { socket } = await openTunnel(t, world, CONNECT)
  const inner = connectTls({
    socket,
    servername: 'other.test',
    ca: world.interceptor.ca,
    checkServerIdentity: () => undefined,
  })
  inner.on('error', () => inner.destroy())
  await waitUntil(() => socket.closed)
  assert.match(world.interceptor.refused[0]?.message ?? '', /a server name other than the host of CONNECT/)
  const { reply } = await openTunnel(t, world, 'CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n')
  assert.match(reply, /^HTTP\/1.1 403[^]*"network_policy_denied","domain":"evil.test"/)
  assert.equal(world.interceptor.refused[1]?.isByPolicy, true)
  assert.equal(world.upstream.received(), '')
})

test('a placeholder in CONNECT, or in a tunnel that is not read, is found', async (t) => {
  const world = await openWorld(t, [testSecret(elsewhere)])
  const { reply } = await openTunnel(t, world, CONNECT.replace('Basic dTpw', '$MSB_KEY'))
  assert.equal(reply, '')
  assert.equal(world.interceptor.refused[0]?.violation?.location, 'header')
  assert.equal(world.proxied(), '')
  const { socket } = await openTunnel(t, world, CONNECT.replaceAll(':443', ':5432'))
  socket.write('\0opaque $MSB_KEY')
  await waitUntil(() => socket.closed)
  assert.equal(world.interceptor.refused[1]?.violation?.location, 'opaque')
  const plain = await openTunnel(t, world, CONNECT.replaceAll(':443', ':80'))
  plain.socket.write(GET.replace('Host: api.test', 'Host: x.test'))
  await waitUntil(() => plain.socket.closed)
  assert.equal(world.interceptor.refused.at(-1)?.isByPolicy, true)
})

test('plain requests in a tunnel get no value, because the proxy could be of the choice of the sandbox', async (t) => {
  const world = await openWorld(t, [testSecret({ require_tls_identity: false })])
  const { socket } = await openTunnel(t, world, CONNECT.replaceAll(':443', ':80'))
  socket.write('GET / HTTP/1.1\r\nHost: api.test\r\nX-Key: $MSB_KEY\r\n\r\n')
  await once(socket, 'close')
  assert.ok(!world.proxied().includes('the-real-value') && !world.proxied().includes('$MSB_KEY'), world.proxied())
})

test('a tunnel to another port passes its TLS unread, and a refusal of the proxy reaches the client', async (t) => {
  const world = await openWorld(t, [testSecret()])
  const { socket } = await openTunnel(t, world, CONNECT.replaceAll(':443', ':8443'))
  const inner = connectTls({ socket, servername: 'api.test', ca: [], rejectUnauthorized: false })
  await once(inner, 'secureConnect')
  assert.notEqual(inner.getPeerCertificate().issuer.CN, 'test')
  inner.write(GET)
  assert.match(await readAll(inner), /hello$/)
  assert.match(world.upstream.received(), /X-Key: \$MSB_KEY/)
  const denied = await openTunnel(t, world, CONNECT.replaceAll('api.test', 'denied.test'))
  assert.match(denied.reply, /^HTTP\/1.1 407/)
})

test('a malformed CONNECT reaches no proxy', async (t) => {
  const world = await openWorld(t, [testSecret()])
  for (const head of [
    'CONNECT api.test HTTP/1.1\r\nHost: api.test\r\n\r\n',
    'CONNECT api.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n',
    'CONNECT api.test:443 HTTP/1.1\r\nHost: api.test\r\nHost: api.test\r\n\r\n',
    'CONNECT api.test:443 HTTP/1.1\r\nContent-Length: 4\r\n\r\n',
    `CONNECT api.test:443 HTTP/1.1\r\nX: ${'a'.repeat(70_000)}\r\n\r\n`,
  ]) {
    const { socket } = await openTunnel(t, world, head)
    await waitUntil(() => socket.closed || socket.readableEnded)
  }
  assert.equal(world.proxied(), '')
  assert.equal(world.interceptor.refused.length, 5)
})
