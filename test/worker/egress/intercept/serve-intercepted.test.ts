import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer as createHttpServer, type IncomingMessage } from 'node:http'
import { request } from 'node:https'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test, type TestContext } from 'node:test'
import { connect as connectTls, type TLSSocket } from 'node:tls'
import { WebSocket, WebSocketServer } from 'ws'
import type { RunSecret } from '../../../../src/domain/spec/secrets.ts'
import { makeBodyBudgets, type BodyBudget } from '../../../../src/worker/egress/intercept/body-budget.ts'
import { runCommand } from '../../../../src/lib/run-command.ts'
import { makeCertificate } from '../../../support/certificates.ts'
import { waitUntil } from '../../../support/wait.ts'
import {
  openInterceptor,
  openUpstream,
  testSecret,
  type Interceptor,
  type Upstream,
} from '../../../support/intercept.ts'

const folder = mkdtempSync(join(tmpdir(), 'intercept-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test', 'other.test'])

type World = { readonly interceptor: Interceptor; readonly upstream: Upstream }

async function openWorld(
  t: TestContext,
  secrets: readonly RunSecret[],
  options: {
    readonly sni?: string
    readonly tiedNames?: readonly string[]
    readonly verify?: boolean
    readonly budget?: BodyBudget
  } = {},
): Promise<World> {
  const http = createHttpServer((incoming, outgoing) => {
    incoming.resume().on('end', () => outgoing.end('hello'))
  })
  const sockets = new WebSocketServer({ server: http })
  sockets.on('connection', (socket) => {
    socket.on('message', (data) => {
      socket.send(data)
    })
  })
  const upstream = await openUpstream(t, certificate, (socket) => http.emit('connection', socket))
  const interceptor = await openInterceptor(t, {
    upstreamPort: upstream.port,
    caFile: certificate.caFile,
    secrets,
    ...options,
  })
  return { interceptor, upstream }
}

type Reply = { readonly status: number; readonly body: string }

async function send(
  { interceptor: { port, ca } }: World,
  options: { readonly path?: string; readonly headers?: Record<string, string>; readonly method?: string },
  body?: readonly string[],
): Promise<Reply> {
  const headers = { host: 'api.test', ...options.headers }
  const outgoing = request({ ...options, port, host: '127.0.0.1', servername: 'api.test', ca, agent: false, headers })
  for (const part of body ?? []) {
    outgoing.write(part)
    await new Promise((resolve) => setImmediate(resolve))
  }
  outgoing.end()
  const [incoming] = (await once(outgoing, 'response')) as [IncomingMessage]
  const parts = await incoming.toArray()
  return { status: incoming.statusCode ?? 0, body: Buffer.concat(parts as Buffer[]).toString() }
}

async function connectRaw({ interceptor: { port, ca } }: World, servername = 'api.test'): Promise<TLSSocket> {
  const socket = connectTls({ port, host: '127.0.0.1', servername, ca })
  await once(socket, 'secureConnect')
  return socket
}

async function readUntil(socket: Socket, text: string): Promise<string> {
  let read = ''
  for await (const bytes of socket.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    read += bytes.toString('latin1')
    if (read.includes(text)) break
  }
  return read
}

test('a value is put into headers, basic credentials, the query and bodies, and only there', async (t) => {
  const world = await openWorld(t, [testSecret()])
  const basic = Buffer.from('user:$MSB_KEY').toString('base64')
  const path = '/$MSB_KEY?a=$MSB_KEY'
  assert.deepEqual(
    await send(world, { path, headers: { 'x-key': 'Bearer $MSB_KEY', authorization: `Basic ${basic}` } }),
    {
      status: 200,
      body: 'hello',
    },
  )
  const received = world.upstream.received()
  assert.match(received, /^GET \/\$MSB_KEY\?a=the-real-value HTTP/)
  assert.match(received, /x-key: Bearer the-real-value\r\n/i)
  assert.ok(received.includes(Buffer.from('user:the-real-value').toString('base64')))
  await send(world, { method: 'POST', headers: { 'content-length': '14' } }, ['abc$M', 'SB_KE', 'Ydef'])
  assert.match(world.upstream.received(), /Content-Length: 20\r\n\r\nabcthe-real-valuedef/i)
  await send(world, { method: 'POST', headers: { 'transfer-encoding': 'chunked' } }, [
    'one $MSB',
    '_K',
    'EY two',
    '$MSB_KE',
  ])
  assert.match(world.upstream.received().replaceAll(/\r\n[\da-f]+\r\n/g, ''), /one the-real-value two\$MSB_KE/)
})

test('a placeholder for another host is refused in every form and place, and nothing of it is forwarded', async (t) => {
  const world = await openWorld(t, [testSecret({ allowed_hosts: [{ type: 'exact', value: 'other.test' }] })])
  const escaped = Array.from('$MSB_KEY', (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`).join(
    '',
  )
  const encoded = Array.from('$MSB_KEY', (letter) => `%${letter.charCodeAt(0).toString(16)}`).join('')
  const basic = Buffer.from('user:$MSB_KEY').toString('base64')
  const denied = { code: 'secret_policy_denied', domain: 'api.test', message: 'Request blocked by secret policy.' }
  const requests = [
    { path: '/$MSB_KEY' },
    { path: `/?key=${encoded}` },
    { headers: { 'x-key': '$MSB_KEY' } },
    { headers: { 'x-key': escaped } },
    { headers: { authorization: `Basic ${basic}` } },
  ]
  for (const options of requests) {
    const { status, body } = await send(world, options)
    assert.deepEqual([status, JSON.parse(body)], [403, denied])
  }
  assert.equal(world.upstream.received(), '')
  assert.deepEqual(
    world.interceptor.refused.map(({ violation }) => [violation?.location, violation?.form]),
    [
      ['request_line', 'raw'],
      ['request_line', 'percent_encoded'],
      ['header', 'raw'],
      ['header', 'unicode_escaped'],
      ['header', 'basic'],
    ],
  )
  for (const text of ['$MSB_KEY', encoded, escaped]) {
    const body = [text.slice(0, 5), text.slice(5, 7), text.slice(7)]
    await send(world, { method: 'POST', headers: { 'transfer-encoding': 'chunked' } }, body).catch(() => null)
    assert.equal(world.interceptor.refused.at(-1)?.violation?.location, 'body')
    assert.ok(
      !world.upstream
        .received()
        .replaceAll(/\r\n[\da-f]*\r\n/g, '')
        .includes(text),
    )
  }
  assert.equal(world.interceptor.refused.length, 8)
})

test('passthrough hosts get the placeholder, and an allowed host without a tie by DNS gets nothing', async (t) => {
  const passing = { allowed_hosts: [{ type: 'exact', value: 'x.test' }], passthrough_hosts: [{ type: 'any' }] } as const
  const passed = await openWorld(t, [testSecret(passing)])
  await send(passed, { headers: { 'x-key': '$MSB_KEY' } })
  assert.match(passed.upstream.received(), /x-key: \$MSB_KEY\r\n/i)
  for (const options of [{ tiedNames: [] }, { tiedNames: ['other.test'] }, { verify: false }]) {
    const world = await openWorld(t, [testSecret()], options)
    assert.equal((await send(world, { headers: { 'x-key': '$MSB_KEY' } })).status, 403)
    assert.equal(world.upstream.received(), '')
  }
})

test('a terminating violation is the strictest one and gets no reply', async (t) => {
  const elsewhere = { allowed_hosts: [{ type: 'exact', value: 'x.test' }] } as const
  const world = await openWorld(t, [
    testSecret({ ...elsewhere, violation_action: { type: 'block' } }),
    testSecret({ ...elsewhere, env_var: 'B', placeholder: '$B', violation_action: { type: 'block_and_terminate' } }),
  ])
  await assert.rejects(send(world, { path: '/$MSB_KEY', headers: { b: '$B' } }))
  const violation = world.interceptor.refused[0]?.violation
  assert.deepEqual([violation?.action, violation?.env_var], ['block_and_terminate', 'B'])
  assert.ok(!JSON.stringify(world.interceptor.refused).includes('the-real-value'))
})

test('requests for another host, and requests that servers may read differently, end the connection', async (t) => {
  const world = await openWorld(t, [testSecret()])
  const head = 'POST / HTTP/1.1\r\nHost: api.test\r\n'
  const malformed = [
    'GET / HTTP/1.1\r\nHost: other.test\r\n\r\n',
    'GET / HTTP/1.1\r\n\r\n',
    'GET / HTTP/1.1\r\nHost: api.test\r\nHost: api.test\r\n\r\n',
    'GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n',
    'GET  / HTTP/1.1\r\nHost: api.test\r\n\r\n',
    'GET / HTTP/1.1\nHost: api.test\n\n\r\n\r\n',
    'CONNECT api.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n',
    `${head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${head}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab`,
    `${head}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
    `${head}X: \xff\r\n\r\n`,
    `${head}X: ${'a'.repeat(70_000)}\r\n\r\n`,
    `${head}Content-Length: 20000000\r\n\r\n`,
  ]
  for (const text of malformed) {
    const socket = await connectRaw(world)
    socket.on('error', () => socket.destroy())
    socket.end(Buffer.from(text, 'latin1'))
    await once(socket.resume(), 'close')
  }
  assert.equal(world.upstream.received(), '')
  assert.equal(world.interceptor.refused.length, malformed.length)
})

test('a body that is changed as a whole and stops coming ends its connection, and gives its memory back', async (t) => {
  const budget = makeBodyBudgets({ capacity: 64 * 1024, idleLimitMs: 50 })('sandbox')
  const world = await openWorld(t, [testSecret()], { budget })
  const socket = await connectRaw(world)
  socket.on('error', () => socket.destroy())
  socket.write('POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 30000\r\n\r\nthe begin')
  await once(socket.resume(), 'close')
  await waitUntil(() => budget.acquire(30_000))
  assert.equal(world.upstream.received(), '')
})

test('pipelined requests arrive in order, byte by byte, and a second request for another host ends the connection', async (t) => {
  const world = await openWorld(t, [testSecret()])
  const socket = await connectRaw(world)
  const first = 'POST /1 HTTP/1.1\r\nHost: api.test:443\r\nContent-Length: 3\r\n\r\nabc'
  const second = 'GET /2 HTTP/1.1\r\nHost: API.test\r\nX: $MSB_KEY\r\n\r\n'
  for (const byte of first + second) socket.write(byte)
  const replies = await readUntil(socket, 'hello')
  assert.match(replies, /^HTTP\/1.1 200/)
  socket.write('GET /3 HTTP/1.1\r\nHost: other.test\r\n\r\n')
  await once(socket.resume(), 'close')
  assert.match(world.upstream.received(), /^POST \/1[^]*\r\n\r\nabcGET \/2[^]*X: the-real-value\r\n\r\n$/)
})

test('WebSocket messages pass, and a placeholder for another host in one ends the connection', async (t) => {
  const world = await openWorld(t, [testSecret({ allowed_hosts: [{ type: 'exact', value: 'x.test' }] })])
  const { port, ca } = world.interceptor
  const socket = new WebSocket('wss://api.test/', {
    createConnection: () => connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca }),
  })
  await once(socket, 'open')
  const big = Buffer.alloc(3_000_000, 'a')
  socket.send(big)
  const [echo] = (await once(socket, 'message')) as [Buffer]
  assert.ok(echo.equals(big))
  socket.on('error', () => null)
  const raw = (socket as unknown as { readonly _socket: Socket })._socket
  raw.write(Buffer.from('$MSB_KEY'))
  await once(socket, 'close')
  assert.equal(world.interceptor.refused[0]?.violation?.location, 'opaque')
})

test('curl trusts the authority, sends HTTP/1.1 and uploads a file unchanged', async (t) => {
  const world = await openWorld(t, [testSecret({ allowed_hosts: [{ type: 'exact', value: 'x.test' }] })])
  const caFile = join(folder, 'intercept-ca.pem')
  const file = join(folder, 'upload')
  writeFileSync(caFile, world.interceptor.ca)
  writeFileSync(file, Buffer.alloc(2_000_000, 'upload '))
  const { port } = world.interceptor
  const to = [
    '--cacert',
    caFile,
    '--connect-to',
    `api.test:443:127.0.0.1:${String(port)}`,
    '-sS',
    '--fail',
    '--noproxy',
    '*',
  ]
  const { stdout } = await runCommand('curl', [...to, '-T', file, 'https://api.test/up'], { timeoutMs: 20_000 })
  assert.equal(stdout.toString(), 'hello')
  assert.match(world.upstream.received(), /^PUT \/up HTTP\/1.1/)
  assert.ok(world.upstream.received().includes('upload '.repeat(285_714)))
})

test('a client that leaves during or after the handshake takes its connection with it', async (t) => {
  const { interceptor } = await openWorld(t, [])
  for (const isPatient of [false, true]) {
    const client = connectTls({ port: interceptor.port, host: '127.0.0.1', servername: 'api.test', ca: interceptor.ca })
    await once(client, 'secureConnect')
    if (isPatient) await once(client, 'session') // the handshake is over at the other side too
    client.destroy()
    await waitUntil(() => interceptor.open() === 0)
  }
})

test('a response streams while it is written, byte for byte', async (t) => {
  const answers: Duplex[] = []
  const upstream = await openUpstream(t, certificate, (socket) => {
    answers.push(socket.resume())
  })
  const interceptor = await openInterceptor(t, { upstreamPort: upstream.port, caFile: certificate.caFile, secrets: [] })
  const socket = await connectRaw({ interceptor, upstream })
  socket.write('GET / HTTP/1.1\r\nHost: api.test\r\n\r\n')
  await waitUntil(() => upstream.received().endsWith('\r\n\r\n'))
  for (const part of ['HTTP/1.1 200  odd\r\nx:  y\r\n\r\n', 'data: $MSB_KEY\n\n', 'data: 2\n\n']) {
    answers[0]?.write(part)
    assert.equal(await readUntil(socket, part), part)
  }
  socket.destroy()
})

test('a placeholder that is the begin of another one does not refuse it', async (t) => {
  const elsewhere = {
    env_var: 'K',
    placeholder: '$MSB_K',
    allowed_hosts: [{ type: 'exact', value: 'x.test' }],
  } as const
  const world = await openWorld(t, [testSecret(), testSecret(elsewhere)])
  assert.equal((await send(world, { headers: { 'x-key': '$MSB_KEY' } })).status, 200)
  assert.match(world.upstream.received(), /x-key: the-real-value\r\n/i)
  assert.equal((await send(world, { headers: { 'x-key': '$MSB_KEY $MSB_K' } })).status, 403)
})

test('a server whose certificate is not trusted gets no request', async (t) => {
  const world = await openWorld(t, [testSecret()], { sni: 'wrong.test' })
  const socket = await connectRaw(world, 'wrong.test')
  socket.write('GET / HTTP/1.1\r\nHost: wrong.test\r\nX: $MSB_KEY\r\n\r\n')
  await once(socket.resume(), 'close')
  assert.equal(world.upstream.received(), '')
})
