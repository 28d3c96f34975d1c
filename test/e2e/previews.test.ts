import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request, type IncomingHttpHeaders } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { WebSocket } from 'ws'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { guestTool, storeTool } from '../support/guest-tools.ts'
import { runMsb } from '../support/msb.ts'
import { createSecondOrg } from '../support/second-org.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Ports of a real sandbox, as a browser opens them.

const LIMIT_MS = 30_000
/** A web server in the sandbox. It echoes, streams, upgrades and sets cookies. */
const APP = `
const http = require('node:http'); const crypto = require('node:crypto')
const server = http.createServer(async (req, res) => {
  const url = new URL(req.url, 'http://x')
  if (url.pathname === '/echo') {
    const hash = crypto.createHash('sha256'); let size = 0
    for await (const piece of req) { hash.update(piece); size += piece.length }
    res.setHeader('set-cookie', ['own=1; Domain=localhost; Path=/', 'sandyard_preview=forged'])
    return res.end(JSON.stringify({ method: req.method, url: req.url, headers: req.headers, size, hash: hash.digest('hex'), pid: process.pid, port: req.socket.remotePort }))
  }
  if (url.pathname === '/large') { for (let n = 0; n < 64; n++) if (!res.write(Buffer.alloc(1 << 20, n))) await new Promise((go) => res.once('drain', go)); return res.end() }
  if (url.pathname === '/events') {
    res.writeHead(200, { 'content-type': 'text/event-stream' }); let n = 0
    const timer = setInterval(() => res.write('data: ' + n++ + '\\n\\n'), 50); req.on('close', () => clearInterval(timer)); return
  }
  if (url.pathname === '/duplex') { res.writeHead(200); req.on('data', (piece) => res.write(piece.toString().toUpperCase())); req.on('end', () => res.end()); return }
  res.writeHead(404).end('the sandbox has no such page')
})
server.on('upgrade', (req, socket) => {
  const accept = crypto.createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64')
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + '\\r\\n\\r\\n')
  socket.on('data', (frame) => {
    if ((frame[0] & 15) === 8) return socket.end(Buffer.from([0x88, 0]))
    const length = frame[1] & 127, mask = frame.subarray(2, 6), text = Buffer.from(frame.subarray(6, 6 + length).map((byte, n) => byte ^ mask[n % 4]))
    const answer = Buffer.from('you said ' + text); socket.write(Buffer.concat([Buffer.from([0x81, answer.length]), answer]))
  })
})
server.listen(3000, '127.0.0.1'); http.createServer((req, res) => res.end('on ::1')).listen(3001, '::1')
require('node:net').createServer((socket) => socket.end('not http\\n')).listen(3002)
`

type Answer = { readonly status: number; readonly headers: IncomingHttpHeaders; readonly text: string }

describe('previews of real sandboxes', { skip: whyNoServer() }, () => {
  let server: RealServer
  let box: SandboxBody
  before(async () => {
    server = await startServer({})
    const tool = await storeTool(server, 'node')
    const cmd = ['sh', '-c', `cat >/root/app.js <<'EOF'\n${APP}\nEOF\n${guestTool('node')} /root/app.js`]
    const { id } = await mustCall(server, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: {
        name: 'web',
        image: DEMO_IMAGE,
        runtime: { entrypoint: [], cmd },
        mounts: [tool],
        resources: { memory_mib: 512 },
      },
    })
    box = await mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
    let last = ''
    const ready = async (): Promise<boolean> => {
      const { status, text } = await get('/echo', withKey())
      last = `${String(status)} ${text}`
      return status === 200
    }
    await waitUntil(ready, LIMIT_MS, () => last)
  })
  after(() => server.close())

  const portOfServer = (): number => Number(new URL(server.url).port)
  const hostOf = (port = 3000, slug = box.slug): string => `${String(port)}-${slug}.localhost:${String(portOfServer())}`
  const withKey = (key = server.key): Record<string, string> => ({ authorization: `Bearer ${key}` })

  /** Sends a request to a preview, whose name needs no resolver. */
  async function get(
    path: string,
    headers: Record<string, string | string[]> = {},
    { method = 'GET', host = hostOf(), body }: { method?: string; host?: string; body?: Buffer } = {},
  ): Promise<Answer> {
    const asked = request({ host: '127.0.0.1', port: portOfServer(), path, method, headers: { ...headers, host } })
    asked.end(body)
    const [reply] = await once(asked, 'response')
    let text = ''
    for await (const piece of reply) text += String(piece)
    return { status: reply.statusCode, headers: reply.headers, text }
  }

  test('a key of the organization opens any port, and the sandbox sees who asks, but no key', async () => {
    const body = randomBytes(3_000_000)
    const { status, text, headers } = await get('/echo?a=1&b', { ...withKey(), cookie: 'a=1; sandyard_preview=syp_x; b=2', 'x-forwarded-for': '6.6.6.6', te: 'trailers' }, { method: 'POST', body }) // prettier-ignore
    assert.equal(status, 200)
    const seen = JSON.parse(text)
    assert.deepEqual([seen.method, seen.url, seen.size], ['POST', '/echo?a=1&b', body.length])
    assert.equal(seen.hash, createHash('sha256').update(body).digest('hex'))
    assert.deepEqual(
      ['host', 'x-forwarded-for', 'x-forwarded-host', 'x-forwarded-proto', 'authorization', 'cookie', 'te'].map(
        (name) => seen.headers[name],
      ),
      [hostOf(), '127.0.0.1', hostOf(), 'http', undefined, 'a=1; b=2', undefined],
    )
    assert.deepEqual(
      headers['set-cookie'],
      ['own=1; Path=/'],
      'no cookie for all previews, and none that looks like a link',
    )
    assert.equal((await get('/none', withKey())).text, 'the sandbox has no such page')
    assert.equal((await get('/', withKey(), { host: hostOf(3001) })).text, 'on ::1')
  })

  test('connections are used again, and the application keeps its own authorization', async () => {
    const ports = new Set<number>()
    for (let n = 0; n < 10; n++) ports.add(JSON.parse((await get('/echo', withKey())).text).port)
    assert.equal(ports.size, 1)
    const { id } = await open({ port: 3000, access: 'public' })
    const seen = JSON.parse((await get('/echo', { authorization: 'Basic eDp5' })).text)
    assert.equal(seen.headers.authorization, 'Basic eDp5')
    await revoke(id)
  })

  test('nobody else opens a port, and cannot tell a sandbox from none', async () => {
    const stranger = await createSecondOrg(server.dataDir, 'strangers')
    for (const headers of [
      {},
      withKey('msb_live_wrong'),
      withKey(stranger),
      { cookie: 'sandyard_preview=syp_wrong' },
    ]) {
      const refused = await get('/echo', headers)
      const none = await get('/echo', headers, { host: hostOf(3000, 'no-such-box') })
      assert.deepEqual([refused.status, none.status], [401, 401])
      assert.equal(refused.text, none.text)
    }
    assert.equal(
      (await get('/v1/sandboxes', withKey(), { host: hostOf(8080, 'no-such-box') })).status,
      401,
      'no API there',
    )
    const page = await get('/', { accept: 'text/html' })
    assert.match(page.text, /<h1>This preview is private, or it does not exist\.<\/h1>/)
    for (const host of ['x.localhost', '0-a-b.localhost', '70000-abc.localhost', `3000-${box.slug}.evil.localhost`])
      assert.equal((await get('/', withKey(), { host })).status, 404, host)
  })

  test('a link opens one port until it expires or is revoked, and its secret leaves the URL', async () => {
    const { id, url } = await open({ port: 3000, expires_at: new Date(Date.now() + 3_600_000).toISOString() })
    const link = new URL(url)
    assert.equal(link.host, hostOf())
    const first = await get(`/echo?x=1&${link.search.slice(1)}`)
    assert.deepEqual([first.status, first.headers.location], [302, '/echo?x=1'])
    const [cookie = ''] = first.headers['set-cookie'] ?? []
    assert.match(cookie, /^sandyard_preview=syp_\w+; Path=\/; HttpOnly; SameSite=Lax$/)
    const kept = { cookie: cookie.split(';')[0] ?? '' }
    const seen = JSON.parse((await get('/echo', kept)).text)
    assert.equal(seen.headers.cookie, undefined)
    assert.equal((await get('/echo', kept, { host: hostOf(3001) })).status, 401, 'another port')
    const posted = await get(`/echo${link.search}&y=2`, {}, { method: 'POST' })
    assert.equal(JSON.parse(posted.text).url, '/echo?y=2')
    const { data } = await list()
    assert.deepEqual(data.map((one) => [one.id, one.url]), [[id, `http://${hostOf()}/`]], 'the secret is shown once') // prettier-ignore
    const ws = await openWebSocket(kept)
    const closed = once(ws, 'close')
    await revoke(id)
    await closed
    assert.equal((await get('/echo', kept)).status, 401)
    const past = await call(server, 'create_preview', { params: { sandbox_id: box.id }, body: { port: 1, expires_at: '2020-01-01T00:00:00Z' } }) // prettier-ignore
    assert.equal(past.status, 400)
  })

  test('WebSockets, events and bodies stream both ways, and slow readers stop nobody else', async () => {
    const ws = await openWebSocket(withKey())
    ws.send('hello')
    assert.equal(String((await once(ws, 'message'))[0]), 'you said hello')
    const events = await stream('/events')
    const slow = await stream('/large') // it is never read
    assert.match(String((await once(events, 'data'))[0]), /data: 0/)
    ws.send('again')
    assert.equal(String((await once(ws, 'message'))[0]), 'you said again')
    for (let n = 0; n < 20; n++) assert.equal((await get('/echo', withKey())).status, 200)
    slow.destroy()
    events.destroy()
    let size = 0
    for await (const piece of await stream('/large')) size += Buffer.byteLength(piece)
    assert.equal(size, 64 * 1024 * 1024)
    const asked = request({ host: '127.0.0.1', port: portOfServer(), path: '/duplex', method: 'POST', headers: { ...withKey(), host: hostOf() } }) // prettier-ignore
    asked.write('first ')
    const [reply] = await once(asked, 'response')
    assert.equal(String((await once(reply, 'data'))[0]), 'FIRST ')
    asked.end('second')
    assert.equal(String((await once(reply, 'data'))[0]), 'SECOND')
    ws.close()
    await once(ws, 'close')
  })

  test('what is wrong is said: nothing listens, no HTTP, not running', async () => {
    const nothing = await get('/', { ...withKey(), accept: 'text/html' }, { host: hostOf(4000) })
    assert.equal(nothing.status, 502)
    assert.match(nothing.text, /Nothing listens on port 4000 in the sandbox &#39;web&#39;/)
    const broken = await get('/', withKey(), { host: hostOf(3002) })
    assert.deepEqual([broken.status, JSON.parse(broken.text).error.code], [502, 'no_http_reply'])
    const { id, slug } = await mustCall(server, 'create_sandbox', { body: { name: 'idle', image: DEMO_IMAGE } })
    const idle = await get('/', withKey(), { host: hostOf(80, slug) })
    assert.deepEqual([idle.status, JSON.parse(idle.text).error.code], [409, 'sandbox_not_running'])
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
    assert.equal((await runMsb(server, ['exec', 'web', '--', 'true'])).code, 0, 'previews use up no channel')
  })

  test('a preview survives a restart of the server, and ends with its sandbox', async () => {
    await open({ port: 3000, access: 'public' })
    const ws = await openWebSocket({})
    const closed = once(ws, 'close')
    await server.kill9()
    await server.start()
    await closed
    await waitUntil(async () => (await get('/echo')).status === 200, LIMIT_MS)
    const again = await openWebSocket({})
    const ended = once(again, 'close')
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: box.id } })
    await ended
    await waitUntil(async () => (await get('/echo')).status === 401, LIMIT_MS)
  })

  type PreviewBody = { readonly id: string; readonly url: string }
  async function open(body: object): Promise<PreviewBody> {
    const { status, body: made } = await call(server, 'create_preview', { params: { sandbox_id: box.id }, body })
    assert.equal(status, 200, JSON.stringify(made))
    return Object(made)
  }
  async function list(): Promise<{ readonly data: readonly PreviewBody[] }> {
    return Object((await call(server, 'list_previews', { params: { sandbox_id: box.id } })).body)
  }
  async function revoke(preview_id: string): Promise<void> {
    const { status } = await call(server, 'revoke_preview', { params: { sandbox_id: box.id, preview_id } })
    assert.equal(status, 200)
    await waitUntil(async () => (await get('/echo', {})).status === 401, LIMIT_MS)
  }
  async function openWebSocket(headers: Record<string, string>): Promise<WebSocket> {
    const socket = new WebSocket(`ws://127.0.0.1:${String(portOfServer())}/`, {
      headers: { ...headers, host: hostOf() },
    })
    await once(socket, 'open')
    return socket
  }
  async function stream(path: string) {
    const asked = request({ host: '127.0.0.1', port: portOfServer(), path, headers: { ...withKey(), host: hostOf() } })
    asked.end()
    const [reply] = await once(asked, 'response')
    assert.equal(reply.statusCode, 200)
    return reply
  }
})
