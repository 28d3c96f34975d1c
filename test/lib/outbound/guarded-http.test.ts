import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import {
  makeGuardedHttp,
  type GuardedHttp,
  type GuardedLimits,
  type Reach,
} from '../../../src/lib/outbound/guarded-http.ts'

const LIMITS: GuardedLimits = { replyMs: 5_000, idleMs: 5_000, totalMs: 10_000, bodyBytes: 1_000_000 }

async function serve(
  t: TestContext,
  answer: (request: IncomingMessage, response: ServerResponse) => void,
): Promise<string> {
  const server = createServer(answer)
  await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const bound = server.address()
  return typeof bound === 'object' && bound !== null ? String(bound.port) : ''
}

function get(http: GuardedHttp, url: string, options: { limits?: GuardedLimits; linkedFrom?: Reach } = {}) {
  const { limits = LIMITS, linkedFrom = null } = options
  const headers = { authorization: 'secret', 'x-signature': 'secret', accept: 'a/b' }
  const signal = new AbortController().signal
  return http.send({ url: new URL(url), method: 'GET', headers, limits, signal, linkedFrom })
}

test('the judged address is dialled, even if the name resolves to another one later', async (t) => {
  const port = await serve(t, (_request, response) => response.end('inside'))
  let asked = 0
  const http = makeGuardedHttp({
    judge: ({ address }) => (address === '127.0.0.1' ? 'public' : null),
    resolve: () => Promise.resolve([asked++ === 0 ? '127.0.0.1' : '127.0.0.2']),
  })
  const reply = await get(http, `http://rebinding.example:${port}/`)
  assert.equal(await text(reply.body), 'inside')
  assert.equal(asked, 1, 'the name was resolved again after it was judged')
  await assert.rejects(get(http, `http://rebinding.example:${port}/`), /no address of .* is allowed/)
})

test('of several addresses only the allowed ones are dialled', async (t) => {
  const port = await serve(t, (request, response) => response.end(request.socket.localAddress))
  const http = makeGuardedHttp({
    judge: ({ address }) => (address === '127.0.0.3' ? 'public' : null),
    resolve: () => Promise.resolve(['127.0.0.1', '127.0.0.2', '127.0.0.3']),
  })
  assert.equal(await text((await get(http, `http://many.example:${port}/`)).body), '127.0.0.3')
})

test('a redirect is judged again, carries no secret to another origin, and ends after five', async (t) => {
  const seen: (string | undefined)[] = []
  const target = await serve(t, (request, response) => {
    seen.push(request.headers.authorization, String(request.headers['x-signature']), request.headers.accept)
    response.end('target')
  })
  let location = `http://127.0.0.1:${target}/`
  const first = await serve(t, (_request, response) => response.writeHead(302, { location }).end())
  const http = makeGuardedHttp({ judge: ({ address }) => (address === '127.0.0.1' ? 'named' : null) })
  assert.equal(await text((await get(http, `http://127.0.0.1:${first}/`)).body), 'target')
  assert.deepEqual(seen, [undefined, 'undefined', 'a/b'])
  location = `http://127.0.0.2:${target}/`
  await assert.rejects(get(http, `http://127.0.0.1:${first}/`), /no address of .* is allowed/)
  location = 'file:///etc/passwd'
  await assert.rejects(get(http, `http://127.0.0.1:${first}/`), /unusable address/)
  location = '/again'
  await assert.rejects(get(http, `http://127.0.0.1:${first}/`), /more than 5 redirects/)
})

test('a body is sent as it is, and never to where a reply redirects', async (t) => {
  const bodies: string[] = []
  const target = await serve(t, (request, response) => {
    void text(request).then((body) => {
      bodies.push(`${String(request.method)} ${String(request.headers['content-length'])} ${body}`)
      response.end()
    })
  })
  const first = await serve(t, (_request, response) =>
    response.writeHead(307, { location: `http://127.0.0.1:${target}/` }).end(),
  )
  const http = makeGuardedHttp({ judge: () => 'named' })
  const post = (port: string) => {
    const { signal } = new AbortController()
    const url = new URL(`http://127.0.0.1:${port}/`)
    return http.send({ url, method: 'POST', headers: {}, body: Buffer.from('spans'), limits: LIMITS, signal, linkedFrom: null }) // prettier-ignore
  }
  assert.equal((await post(target)).status, 200)
  await assert.rejects(post(first), /redirects/)
  assert.deepEqual(bodies, ['POST 5 spans'])
})

test('a public host never leads to a named one', async (t) => {
  const target = await serve(t, (_request, response) => response.end('target'))
  const first = await serve(t, (_request, response) =>
    response.writeHead(302, { location: `http://127.0.0.2:${target}/` }).end(),
  )
  const judge = ({ address }: { readonly address: string }): Reach => (address === '127.0.0.1' ? 'public' : 'named')
  const http = makeGuardedHttp({ judge })
  await assert.rejects(get(http, `http://127.0.0.1:${first}/`), /no address of .* is allowed/)
  await assert.rejects(
    get(http, `http://127.0.0.2:${target}/`, { linkedFrom: 'public' }),
    /no address of .* is allowed/,
  )
})

test('a server that is silent, stalls, sends too much or never ends is left', async (t) => {
  const http = makeGuardedHttp({ judge: () => 'public' })
  const port = await serve(t, (request, response) => {
    if (request.url === '/silent') return
    response.write('x'.repeat(1000))
    if (request.url !== '/drip') return
    const timer = setInterval(() => response.write('x'), 20)
    response.on('close', () => {
      clearInterval(timer)
    })
  })
  const ask = async (path: string, limits: Partial<GuardedLimits>): Promise<string> =>
    text((await get(http, `http://127.0.0.1:${port}${path}`, { limits: { ...LIMITS, ...limits } })).body)
  await assert.rejects(ask('/silent', { replyMs: 50 }))
  await assert.rejects(ask('/stall', { idleMs: 50 }))
  await assert.rejects(ask('/drip', { totalMs: 200 }))
  await assert.rejects(ask('/stall', { bodyBytes: 100 }), /larger than 100 bytes/)
})
