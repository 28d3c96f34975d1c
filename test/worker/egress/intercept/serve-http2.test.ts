import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import {
  connect as connectHttp2,
  performServerHandshake,
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type OutgoingHttpHeaders,
  type ServerHttp2Stream,
} from 'node:http2'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test, type TestContext } from 'node:test'
import { connect as connectTls } from 'node:tls'
import fc from 'fast-check'
import type { RunSecret } from '../../../../src/domain/spec/secrets.ts'
import { makeCertificate } from '../../../support/certificates.ts'
import { openInterceptor, openUpstream, testSecret, type Interceptor } from '../../../support/intercept.ts'
import { waitUntil } from '../../../support/wait.ts'

const folder = mkdtempSync(join(tmpdir(), 'http2-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])
const elsewhere = { allowed_hosts: [{ type: 'exact', value: 'x.test' }] } as const

type Seen = { readonly headers: readonly string[]; body: Buffer; trailers: object; readonly stream: ServerHttp2Stream }
type World = { readonly interceptor: Interceptor; readonly seen: Seen[]; readonly client: ClientHttp2Session }

/** A server that echoes bodies, with an informational response before and trailers after them. */
async function openWorld(t: TestContext, secrets: readonly RunSecret[]): Promise<World> {
  const seen: Seen[] = []
  const upstream = await openUpstream(t, certificate, (socket) => {
    const session = performServerHandshake(socket)
    session.on('error', () => session.destroy())
    session.on('stream', (stream, _headers, _flags, raw) => {
      const one: Seen = { headers: raw, body: Buffer.alloc(0), trailers: {}, stream }
      seen.push(one)
      stream.on('error', () => stream.destroy())
      stream.on('trailers', (trailers) => (one.trailers = { ...trailers }))
      stream.additionalHeaders({ ':status': 103, link: '</a>' })
      stream.respond([':status', '200', 'set-cookie', 'a=1', 'set-cookie', 'b=2'], { waitForTrailers: true })
      stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
      stream.on('data', (bytes: Buffer) => {
        one.body = Buffer.concat([one.body, bytes])
        if (!stream.write(bytes)) stream.pause()
      })
      stream.on('drain', () => stream.resume())
      stream.on('end', () => stream.end())
    })
  })
  const interceptor = await openInterceptor(t, { upstreamPort: upstream.port, caFile: certificate.caFile, secrets })
  return { interceptor, seen, client: openClient(t, interceptor) }
}

function openClient(t: TestContext, { port, ca }: Interceptor): ClientHttp2Session {
  const client = connectHttp2('https://api.test', {
    createConnection: () => connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca }),
  })
  client.on('error', () => client.destroy())
  t.after(() => {
    client.destroy()
  })
  return client
}

type Reply = {
  readonly headers: object
  readonly informational: object
  readonly trailers: object
  readonly body: Buffer
}

async function read(stream: ClientHttp2Stream): Promise<Reply> {
  let [headers, informational, trailers]: object[] = [{}, {}, {}]
  stream.on('response', (got) => (headers = got))
  stream.on('headers', (got) => (informational = got))
  stream.on('trailers', (got) => (trailers = got))
  const body = Buffer.concat((await stream.toArray()) as Buffer[])
  return { headers: headers ?? {}, informational: informational ?? {}, trailers: trailers ?? {}, body }
}

const get = (headers: OutgoingHttpHeaders = {}) => ({ ':path': '/', ...headers })

/** The field of a request as the server saw it. */
function fieldOf({ headers }: Seen, name: string): readonly string[] {
  return headers.filter((_, index) => index % 2 === 1 && headers[index - 1] === name)
}

test('values go into header fields, credentials and the query of HTTP/2, and all else is as it was', async (t) => {
  const { client, seen } = await openWorld(t, [testSecret()])
  const basic = Buffer.from('user:$MSB_KEY').toString('base64')
  const path = '/$MSB_KEY?a=$MSB_KEY'
  const fields = { 'x-key': 'Bearer $MSB_KEY', authorization: `Basic ${basic}`, cookie: ['a=1', 'b=2'] }
  const reply = await read(client.request({ ':path': path, ...fields }))
  const [got] = seen
  assert.ok(got)
  assert.deepEqual(fieldOf(got, ':path'), ['/$MSB_KEY?a=the-real-value'])
  assert.deepEqual(fieldOf(got, 'x-key'), ['Bearer the-real-value'])
  assert.deepEqual(fieldOf(got, 'authorization'), [`Basic ${Buffer.from('user:the-real-value').toString('base64')}`])
  assert.deepEqual(fieldOf(got, 'cookie'), ['a=1', 'b=2'])
  assert.deepEqual(fieldOf(got, ':scheme'), ['https'])
  const { 'set-cookie': cookies, ':status': status } = reply.headers as Record<string, unknown>
  assert.deepEqual([status, cookies], [200, ['a=1', 'b=2']])
  assert.equal((reply.informational as Record<string, unknown>)['link'], '</a>')
  assert.equal((reply.trailers as Record<string, unknown>)['grpc-status'], '0')
})

test('bodies and trailers pass on many streams at once, unchanged', async (t) => {
  const { client, seen } = await openWorld(t, [testSecret(elsewhere)])
  const bodies = Array.from({ length: 20 }, (_, index) => Buffer.alloc(300_000, `body ${String(index)} `))
  const echoes = await Promise.all(
    bodies.map(async (body) => {
      const stream = client.request(get({ ':method': 'POST' }), { waitForTrailers: true })
      stream.on('wantTrailers', () => stream.sendTrailers({ checksum: 'abc' }))
      stream.end(body)
      return (await read(stream)).body
    }),
  )
  assert.ok(echoes.every((echo, index) => echo.equals(bodies[index] ?? Buffer.alloc(0))))
  assert.ok(seen.every(({ trailers }) => 'checksum' in trailers))
})

test('a stream that one side resets is reset on the other side, and the others go on', async (t) => {
  const { client, seen } = await openWorld(t, [])
  const one = client.request(get({ ':method': 'POST' }))
  one.on('error', () => null)
  await once(one, 'response')
  one.close(8)
  await waitUntil(() => seen[0]?.stream.rstCode === 8)
  const two = client.request(get({ ':method': 'POST' }))
  two.on('error', () => null)
  await once(two, 'response')
  seen[1]?.stream.close(2)
  await waitUntil(() => two.closed)
  assert.equal(two.rstCode, 2)
  assert.equal(((await read(client.request(get()))).headers as Record<string, unknown>)[':status'], 200)
})

test('a placeholder for another host ends an HTTP/2 connection, wherever it is', async (t) => {
  const head: readonly (readonly [OutgoingHttpHeaders, string])[] = [
    [{ ':path': '/$MSB_KEY' }, 'request_line'],
    [{ 'x-key': '$MSB_KEY' }, 'header'],
    [{ authorization: `Basic ${Buffer.from('u:$MSB_KEY').toString('base64')}` }, 'header'],
  ]
  const { interceptor, seen } = await openWorld(t, [testSecret(elsewhere)])
  for (const [fields, location] of head) {
    const client = openClient(t, interceptor)
    client.request(get(fields)).on('error', () => null)
    await waitUntil(() => client.closed)
    assert.equal(interceptor.refused.at(-1)?.violation?.location, location)
    assert.equal(interceptor.refused.at(-1)?.context.host, 'api.test')
  }
  assert.equal(seen.length, 0)
  for (const location of ['body', 'trailer'] as const) {
    const client = openClient(t, interceptor)
    const stream = client.request(get({ ':method': 'POST' }), { waitForTrailers: true })
    stream.on('error', () => null)
    stream.on('wantTrailers', () => stream.sendTrailers(location === 'trailer' ? { key: '$MSB_KEY' } : {}))
    if (location === 'body') stream.write('a $MSB')
    stream.end(location === 'body' ? '_KEY b' : 'a')
    await waitUntil(() => client.closed)
    assert.equal(interceptor.refused.at(-1)?.violation?.location, location)
  }
  assert.ok(seen.every(({ body, trailers }) => !body.includes('_KEY') && !('key' in trailers)))
})

test('a body of HTTP/2 is never changed: a placeholder whose value belongs into it ends the connection', async (t) => {
  const { client, interceptor, seen } = await openWorld(t, [testSecret()])
  const stream = client.request(get({ ':method': 'POST' }))
  stream.on('error', () => null)
  stream.end('a $MSB_KEY b')
  await waitUntil(() => client.closed)
  assert.match(interceptor.refused[0]?.message ?? '', /a body that can not be changed/)
  assert.ok(seen.every(({ body }) => body.length === 0))
})

test('requests for another host, or for a tunnel, end an HTTP/2 connection', async (t) => {
  const { interceptor, seen } = await openWorld(t, [testSecret()])
  const malformed: readonly OutgoingHttpHeaders[] = [
    { ':path': '/', ':authority': 'other.test' },
    { ':path': '/', host: 'other.test' },
    { ':method': 'CONNECT', ':authority': 'api.test' },
  ]
  for (const headers of malformed) {
    const client = openClient(t, interceptor)
    client.request(headers).on('error', () => null)
    await waitUntil(() => client.closed)
  }
  assert.deepEqual([seen.length, interceptor.refused.length], [0, malformed.length])
})

test('no bytes of a client end the process, and a server without HTTP/2 ends the connection', async (t) => {
  const { interceptor } = await openWorld(t, [testSecret()])
  const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
  const settings = Buffer.from('000000040000000000', 'hex')
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 60 }), fc.boolean(), fc.boolean(), async (bytes, isValid, ends) => {
      const { port, ca } = interceptor
      const socket = connectTls({ port, host: '127.0.0.1', servername: 'api.test', ca })
      socket.on('error', () => socket.destroy())
      await once(socket, 'secureConnect')
      socket.write(Buffer.concat([preface, ...(isValid ? [settings] : []), bytes]))
      if (ends) socket.end()
      else socket.destroySoon()
      if (!socket.closed) await once(socket.resume(), 'close')
    }),
    { numRuns: 60 },
  )
  const old = await openUpstream(t, certificate, (socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'))
  const other = await openInterceptor(t, { upstreamPort: old.port, caFile: certificate.caFile, secrets: [] })
  const client = openClient(t, other)
  client.request(get()).on('error', () => null)
  await waitUntil(() => client.closed)
})
