import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request, type IncomingMessage, type ServerResponse } from 'node:http'
import { after, before, beforeEach, test } from 'node:test'
import { makeRequestRateLimiter } from '../../src/control/requests/request-rate-limiter.ts'
import type { Log } from '../../src/lib/log.ts'
import { addKey } from '../support/orgs.ts'
import { makePreviewWorld, type PreviewWorld } from '../support/preview-world.ts'
import { exchangeRaw } from '../support/raw-http.ts'
import { makeTestClock } from '../support/test-clock.ts'

// A proxy before a real web server, which stands in for the port of a running sandbox.

let world: PreviewWorld
let key: string
let portOfDoor: number

/** What the web server in the sandbox got: connection, request and body. */
type Got = { readonly from: number | undefined; readonly line: string; readonly body: string }
let got: Got[] = []

before(async () => {
  world = await makePreviewWorld(serveSandbox)
  key = await addKey(world.control.deps, world.control.caller.org_id)
  portOfDoor = await world.openDoor()
})
after(() => world.close())
beforeEach(() => {
  got = []
})

/** Replies with the path. Requests for an upgrade are answered as all others, and before their body. */
function serveSandbox(asked: IncomingMessage, response: ServerResponse): void {
  const { method = '', url = '', socket, headers } = asked
  const reply = (body: string): void => {
    got.push({ from: socket.remotePort, line: `${method} ${url}`, body })
    response.writeHead(200, { 'content-length': url.length }).end(url)
  }
  if (headers.upgrade === undefined) void textOf(asked).then(reply)
  else reply('')
}

async function textOf(message: IncomingMessage): Promise<string> {
  let text = ''
  for await (const piece of message) text += String(piece)
  return text
}

const headOf = (line: string, ...headers: readonly string[]): string =>
  [`${line} HTTP/1.1`, `Host: ${world.host}`, `Authorization: Bearer ${key}`, ...headers, '', ''].join('\r\n')

/** What must never be a request of its own. */
const HIDDEN = 'GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n'

for (const method of ['GET', 'DELETE', 'OPTIONS', 'POST'])
  test(`the body of a ${method} is never read as the next request of a shared connection`, async () => {
    const chunked = `${HIDDEN.length.toString(16)}\r\n${HIDDEN}\r\n0\r\n\r\n`
    const length = String(HIDDEN.length)
    for (const attack of [
      headOf(`${method} /chunked`, 'Transfer-Encoding: chunked') + chunked,
      headOf(`${method} /length`, 'Connection: content-length', `Content-Length: ${length}`) + HIDDEN,
    ]) {
      assert.equal((await exchangeRaw(portOfDoor, attack))?.status, 200)
      assert.equal((await exchangeRaw(portOfDoor, headOf('GET /next')))?.body, '/next', 'another visitor')
    }
    const seen = got.map(({ line, body }) => [line, body])
    assert.deepEqual(seen, [[`${method} /chunked`, HIDDEN], ['GET /next', ''], [`${method} /length`, HIDDEN], ['GET /next', '']]) // prettier-ignore
    assert.equal(new Set(got.map(({ from }) => from)).size, 1, 'the connection is used again')
  })

test('a DELETE with a chunked body arrives whole', async () => {
  const piece = 'abcdefgh'.repeat(8_192)
  const asked = request({
    host: '127.0.0.1',
    port: portOfDoor,
    method: 'DELETE',
    path: '/whole',
    headers: {
      host: world.host,
      authorization: `Bearer ${key}`,
      'transfer-encoding': 'chunked',
    },
  })
  for (let n = 0; n < 5; n++) asked.write(piece)
  asked.end('the end')
  const [reply] = await once(asked, 'response')
  assert.deepEqual([reply.statusCode, await textOf(reply)], [200, '/whole'])
  assert.equal(got[0]?.body, `${piece.repeat(5)}the end`)
})

test('an upgrade with a body is refused, and the connection of an upgrade that the sandbox refuses is not used again', async () => {
  const upgrade = ['Connection: Upgrade', 'Upgrade: websocket']
  for (const framing of [`Content-Length: ${String(HIDDEN.length)}`, 'Transfer-Encoding: chunked'])
    assert.equal((await exchangeRaw(portOfDoor, headOf('GET /upgrade', ...upgrade, framing)))?.status, 400)
  assert.equal(got.length, 0)
  assert.equal((await exchangeRaw(portOfDoor, headOf('GET /upgrade', ...upgrade, 'Content-Length: 0')))?.status, 200)
  assert.equal((await exchangeRaw(portOfDoor, headOf('GET /next')))?.body, '/next')
  assert.deepEqual(
    got.map(({ line }) => line),
    ['GET /upgrade', 'GET /next'],
  )
  assert.notEqual(got[0]?.from, got[1]?.from)
})

test('an address that guesses keys gets 429 for requests and upgrades, which is no error of the server', async () => {
  const { log } = world.control.deps
  const errors: string[] = []
  const failedAuthentications = { perSec: 1, burst: 1 }
  const none = { perSec: 0, burst: 0 }
  const rates = makeRequestRateLimiter({ key: none, org: none, failedAuthentications }, makeTestClock())
  const noting: Log = { ...log, debug: () => undefined, error: (_fields, message) => errors.push(message) }
  const port = await world.openDoor({ log: noting }, rates)
  const guess = async (n: number, ...headers: readonly string[]): Promise<number | undefined> => {
    const head = ['GET / HTTP/1.1', `Host: ${world.host}`, `Authorization: Bearer guess-${String(n)}`, ...headers]
    return (await exchangeRaw(port, `${head.join('\r\n')}\r\n\r\n`))?.status
  }
  const upgrade = ['Connection: Upgrade', 'Upgrade: websocket']
  assert.deepEqual([await guess(1, ...upgrade), await guess(2), await guess(3, ...upgrade)], [401, 429, 429])
  assert.deepEqual(errors, [])
})
