import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer as createHttpServer, type RequestListener } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { createServer as createTcpServer, type AddressInfo, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { test, type TestContext } from 'node:test'
import { makeGuardedPost, PostFailed, type PostLimits } from '../../../src/lib/outbound/guarded-post.ts'
import { makeCertificate } from '../../support/certificates.ts'

const LIMITS: PostLimits = { connectMs: 300, totalMs: 600, bodyBytes: 10 }
const never = new AbortController().signal

async function listen(t: TestContext, server: Server, host = '127.0.0.1'): Promise<number> {
  server.listen(0, host)
  await once(server, 'listening')
  t.after(() => void server.close())
  return (server.address() as AddressInfo).port
}

const http = (t: TestContext, serve: RequestListener, host?: string): Promise<number> => {
  const server = createHttpServer(serve)
  t.after(() => server.closeAllConnections())
  return listen(t, server, host)
}

function post(t: TestContext, deps: Partial<Parameters<typeof makeGuardedPost>[0]> = {}) {
  const client = makeGuardedPost({ judge: () => 'named', limits: LIMITS, ...deps })
  t.after(() => client.close())
  return (url: string, body = '{}', signal = never) =>
    client.send({ url: new URL(url), headers: { 'x-a': 'b' }, body, signal })
}

test('a name that leads elsewhere at its next look-up is not followed: the judged address is the dialled one', async (t) => {
  let asked = 0
  const port = await http(t, (_request, response) => response.end('inside'), '127.0.0.2')
  const send = post(t, {
    judge: ({ address }) => (address === '127.0.0.3' ? 'public' : null),
    resolve: () => Promise.resolve([asked++ === 0 ? '127.0.0.3' : '127.0.0.2']),
  })
  const url = `http://rebound.example:${String(port)}/`
  await assert.rejects(send(url), (error) => error instanceof PostFailed && /refused/.test(error.message))
  assert.equal(asked, 1, 'one look-up, whose address is dialled')
  await assert.rejects(send(url), /rebound\.example:\d+: there is no address/)
  await assert.rejects(send(`http://127.0.0.2:${String(port)}/`), /there is no address that may be reached/)
  await assert.rejects(send(`http://[::ffff:127.0.0.2]:${String(port)}/`), /there is no address that may be reached/)
})

test('of several addresses only the allowed ones are dialled', async (t) => {
  const port = await http(t, (_request, response) => response.end('allowed'), '127.0.0.3')
  const send = post(t, {
    judge: ({ address }) => (address === '127.0.0.3' ? 'public' : null),
    resolve: () => Promise.resolve(['127.0.0.2', '127.0.0.3', '::1']),
  })
  assert.equal((await send(`http://both.example:${String(port)}/`)).body.toString(), 'allowed')
})

test('connections are used again, and one that the host closed in between costs no post', async (t) => {
  let posts = 0
  let connections = 0
  const server = createHttpServer((request, response) => {
    posts += 1
    request.resume().on('end', () => response.end('ok'))
  })
  server.on('connection', (socket) => {
    connections += 1
    if (connections === 1) socket.on('data', () => posts === 2 && socket.destroy()) // as the third post arrives
  })
  t.after(() => server.closeAllConnections())
  const url = `http://127.0.0.1:${String(await listen(t, server))}/`
  const send = post(t)
  for (let n = 0; n < 4; n++) assert.equal((await send(url)).status, 200)
  assert.equal(connections, 3, 'the third post has one of its own')
})

test('the beginning of a reply is read, redirects are replies, and a long body is cut off with its connection', async (t) => {
  const port = await http(t, (request, response) => {
    if (request.url === '/redirect')
      response.writeHead(307, { location: 'http://127.0.0.1:1/' }).end('elsewhere and more')
    else {
      response.on('error', () => undefined)
      const write = (): void => {
        while (!response.destroyed && response.write('y'.repeat(65_536)));
        if (!response.destroyed) response.once('drain', write)
      }
      write()
    }
  })
  const send = post(t)
  const { status, body } = await send(`http://127.0.0.1:${String(port)}/redirect`)
  assert.deepEqual([status, body.toString()], [307, 'elsewhere '])
  const endless = await send(`http://127.0.0.1:${String(port)}/endless`)
  assert.deepEqual([endless.status, endless.body.toString()], [200, 'y'.repeat(10)])
})

test('a host that is slow to connect, to answer, or to end is given up in time, and says which', async (t) => {
  const silent = await listen(
    t,
    createTcpServer(() => undefined),
  )
  const slow = await http(t, (_request, response) => {
    response.writeHead(200)
    const timer = setInterval(() => response.write('x'), 50)
    response.on('close', () => clearInterval(timer))
  })
  const send = post(t)
  await assert.rejects(send(`http://127.0.0.1:${String(silent)}/`), /^Error: no reply within 0\.6 s$/)
  await assert.rejects(send(`https://127.0.0.1:${String(silent)}/`), /no connection within 0\.3 s/)
  await assert.rejects(send(`http://127.0.0.1:${String(slow)}/`), /no reply within 0\.6 s/)
  const lost = post(t, { resolve: () => new Promise(() => undefined) })
  await assert.rejects(lost('http://nowhere.example/'), /no connection within 0\.3 s/)
  const failing = post(t, { resolve: () => Promise.reject(Object.assign(new Error('x'), { code: 'ENOTFOUND' })) })
  await assert.rejects(failing('http://nowhere.example/'), /nowhere\.example: there is no address that may be reached/)
  const stop = new AbortController()
  const stopped = send(`http://127.0.0.1:${String(silent)}/`, '{}', stop.signal)
  stop.abort(new Error('stopped'))
  await assert.rejects(stopped, (error) => !(error instanceof PostFailed))
})

test('the certificate of a host must be its own', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-post-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const { certFile, keyFile } = await makeCertificate(folder)
  const [cert, key] = [readFileSync(certFile), readFileSync(keyFile)]
  const server = createHttpsServer({ cert, key }, (_request, response) => response.end())
  const port = await listen(t, server)
  await assert.rejects(
    post(t)(`https://127.0.0.1:${String(port)}/`),
    /the connection failed \((DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO\w+|SELF_SIGNED\w*)\)/,
  )
})
