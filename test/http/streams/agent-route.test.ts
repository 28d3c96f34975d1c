import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { PassThrough, duplexPair, type Duplex } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { Registry } from 'prom-client'
import { WebSocket } from 'ws'
import { CHANNEL_ENDS, type ChannelEnd } from '../../../src/contract/sandboxes/channel-ends.ts'
import type { OpenChannel } from '../../../src/control/streams/open-channel.ts'
import { CallerEnded } from '../../../src/control/streams/watch-caller.ts'
import { RunEnded } from '../../../src/control/streams/watch-run.ts'
import { Problem } from '../../../src/domain/problem.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import type { UseCases } from '../../support/use-cases.ts'
import { DEFAULT_SERVER_SETTINGS } from '../../../src/http/server/server.ts'
import { openChannelOver } from '../../support/channel.ts'
import { asCaller, makeHttpWorld, SANDBOX_ID, theSandbox, type WorldOptions } from '../../support/http-world.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'
import { waitUntil } from '../../support/wait.ts'

/** Starts a server that closes after the test. Resolves with its port. */
async function listen(t: TestContext, options: WorldOptions): Promise<number> {
  const app = makeHttpWorld(options)
  await app.listen({ host: '127.0.0.1', port: 0 })
  t.after(() => app.close())
  const address = app.server.address()
  assert.ok(typeof address === 'object' && address !== null)
  return address.port
}

type Controls = { readonly end: AbortController; readonly worker: AbortController; readonly channel: OpenChannel }

function withChannel(channel: Duplex): WorldOptions {
  return { useCases: { openChannel: () => openChannelOver(channel) } }
}

const PATH = `/v1/sandboxes/${SANDBOX_ID}/agent`

function dial(port: number, path = PATH, headers: Record<string, string> = asCaller): WebSocket {
  return new WebSocket(`ws://127.0.0.1:${String(port)}${path}`, { headers, perMessageDeflate: true })
}

/** Resolves with the status and body of a refused upgrade. */
async function refusedUpgrade(socket: WebSocket): Promise<{ readonly status: number; readonly body: unknown }> {
  socket.on('error', () => socket.terminate())
  const [, response] = await once(socket, 'unexpected-response', hangLimit())
  let text = ''
  for await (const chunk of response) text += String(chunk)
  return { status: response.statusCode, body: JSON.parse(text) }
}

test('bytes go both ways unchanged, whatever the message boundaries', async (t) => {
  const [ours, theirs] = duplexPair()
  const port = await listen(t, withChannel(ours))
  theirs.pipe(theirs)
  const socket = dial(port)
  await once(socket, 'open', hangLimit())
  assert.equal(socket.extensions, '')
  const sent = Buffer.alloc(3 * 1024 * 1024, 'abcdefg')
  const got: Buffer[] = []
  const whole = new Promise<void>((resolve) => {
    socket.on('message', (data, isBinary) => {
      assert.ok(isBinary && Buffer.isBuffer(data))
      got.push(data)
      if (got.reduce((sum, { length }) => sum + length, 0) === sent.length) resolve()
    })
  })
  socket.send(sent)
  await whole
  assert.ok(Buffer.concat(got).equals(sent))
  socket.close()
  await until(() => ours.destroyed)
})

const HANDSHAKE =
  'connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n'

test('messages of a byte that come together are forwarded in several turns of the event loop', async (t) => {
  const [ours, theirs] = duplexPair()
  const port = await listen(t, withChannel(ours))
  const perTurn = countPerTurn()
  const socket = connect(port, '127.0.0.1')
  socket.write(`GET ${PATH} HTTP/1.1\r\nhost: x\r\nauthorization: ${asCaller.authorization}\r\n${HANDSHAKE}\r\n`)
  await once(socket, 'data', hangLimit())
  socket.write(Buffer.concat(Array.from({ length: 9_000 }, () => Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0x61]))))
  let bytes = 0
  for await (const piece of theirs) {
    perTurn.count(String(piece).length)
    bytes += String(piece).length
    if (bytes === 9_000) break
  }
  assert.ok(perTurn.most() <= 2_000, `${String(perTurn.most())} in one turn`)
  socket.destroy()
  await until(() => ours.destroyed)
})

test('the socket closes with 1000 if its channel ends, 1011 if it fails, 1008 if the agent aborts it, and 1003 after a text message', async (t) => {
  const ends: readonly (readonly [(channel: Duplex, socket: WebSocket) => void, number])[] = [
    [(channel) => channel.push(null), 1000],
    [(channel) => channel.destroy(), 1008],
    [(channel) => channel.destroy(new Error('gone')), 1011],
    [(_channel, socket) => socket.send('text'), 1003],
  ]
  for (const [end, expected] of ends) {
    const channel = new PassThrough()
    const port = await listen(t, withChannel(channel))
    const socket = dial(port)
    await once(socket, 'open', hangLimit())
    end(channel, socket)
    const [code] = await once(socket, 'close', hangLimit())
    assert.equal(code, expected)
    await until(() => channel.destroyed)
  }
})

test('a channel that the control plane ends closes with the reason, which a metric counts, and releases its permit', async (t) => {
  const cases: readonly (readonly [(controls: Controls) => void, ChannelEnd])[] = [
    [({ end }) => end.abort(new CallerEnded('api_key_revoked')), 'api_key_revoked'],
    [({ end }) => end.abort(new CallerEnded('org_suspended')), 'org_suspended'],
    [({ end }) => end.abort(new RunEnded('sandbox_failed')), 'sandbox_failed'],
    [({ worker }) => worker.abort(), 'worker_closing'],
    [({ channel }) => channel.socket.terminate(), 'worker_lost'],
  ]
  for (const [act, why] of cases) {
    const [end, worker, metrics] = [new AbortController(), new AbortController(), new Registry()]
    const channel = await openChannelOver(new PassThrough(), { end: end.signal, worker: worker.signal })
    let closes = 0
    const counted = { ...channel, close: () => void (closes += 1) }
    const port = await listen(t, {
      useCases: { openChannel: () => Promise.resolve(counted) },
      server: { metrics },
    })
    const socket = dial(port)
    await once(socket, 'open', hangLimit())
    act({ end, worker, channel })
    const [code, reason] = await once(socket, 'close', hangLimit())
    assert.deepEqual({ code, reason: String(reason) }, CHANNEL_ENDS[why])
    await until(() => closes === 1 && channel.socket.readyState === channel.socket.CLOSED)
    assert.match(await metrics.metrics(), new RegExp(`sandyard_channel_ends_total\\{why="${why}"\\} 1`))
  }
})

test('a client that reads slowly still gets everything that was sent before the end', async (t) => {
  const channel = new PassThrough({ highWaterMark: 4 * 1024 * 1024 })
  const said = Buffer.alloc(16 * 1024 * 1024, 'x')
  const port = await listen(t, withChannel(channel))
  const socket = dial(port)
  await once(socket, 'open', hangLimit())
  socket.pause()
  channel.end(said)
  let arrived = 0
  socket.on('message', (data) => {
    arrived += Buffer.isBuffer(data) ? data.length : 0
    socket.pause()
    setTimeout(() => socket.resume(), 5)
  })
  socket.resume()
  const [code] = await once(socket, 'close', hangLimit())
  assert.deepEqual([code, arrived], [1000, said.length])
})

test('a message that is too large ends the channel with 1009, whole or in fragments', async (t) => {
  for (const fragments of [[9], [5, 4]]) {
    const socket = dial(await listen(t, withChannel(new PassThrough())))
    await once(socket, 'open', hangLimit())
    socket.on('error', () => socket.terminate())
    for (const [index, mib] of fragments.entries())
      socket.send(Buffer.alloc(mib * 1024 * 1024), { binary: true, fin: index === fragments.length - 1 })
    const [code] = await once(socket, 'close', hangLimit())
    assert.equal(code, CHANNEL_ENDS.message_too_large.code)
  }
})

test('a client that disconnects ends its channel', async (t) => {
  const channel = new PassThrough()
  const port = await listen(t, withChannel(channel))
  const socket = dial(port)
  await once(socket, 'open', hangLimit())
  const closed = once(channel, 'close', hangLimit())
  socket.terminate()
  await closed
})

test('a channel that reads nothing slows the client down instead of filling memory', async (t) => {
  const [ours, theirs] = duplexPair()
  const port = await listen(t, withChannel(ours))
  const socket = dial(port)
  await once(socket, 'open', hangLimit())
  const total = 96 * 1024 * 1024
  const chunk = Buffer.alloc(1024 * 1024)
  for (let sent = 0; sent < total; sent += chunk.length) socket.send(chunk)
  // Kernel buffers and one message may be on their way; the rest must wait at the client.
  await until(() => ours.writableNeedDrain && socket.bufferedAmount > total / 2)
  assert.ok(ours.writableLength < 16 * 1024 * 1024)
  let arrived = 0
  theirs.on('data', (data: Buffer) => (arrived += data.length))
  await until(() => arrived === total)
  socket.terminate()
})

test('a client that does not read slows the channel down instead of filling memory', async (t) => {
  let made = 0
  const chunk = Buffer.alloc(256 * 1024)
  const total = 64 * 1024 * 1024
  const channel = new PassThrough()
  channel._read = function (): void {
    made += chunk.length
    this.push(made > total ? null : chunk)
  }
  const port = await listen(t, withChannel(channel))
  const socket = dial(port)
  await once(socket, 'open', hangLimit())
  socket.pause()
  await until(() => channel.isPaused())
  assert.ok(made < total, 'the channel was read to its end though nobody took it')
  let arrived = 0
  socket.on('message', (data) => (arrived += Buffer.isBuffer(data) ? data.length : 0))
  socket.resume()
  await once(socket, 'close', hangLimit())
  assert.equal(arrived, total)
})

test('every refusal comes before the upgrade, as an HTTP status with the error envelope', async (t) => {
  const channels = {
    openChannel: () => Promise.reject(new Problem('invalid_state_transition', { details: { seen: 'stopped' } })),
  }
  const port = await listen(t, { useCases: channels })
  const cases: readonly (readonly [WebSocket, number])[] = [
    [dial(port, PATH, {}), 401],
    [dial(port, PATH, { authorization: 'Bearer nobody' }), 401],
    [dial(port, '/v1/sandboxes/1/agent'), 400],
    [dial(port, `${PATH}?x=1`), 400],
    [dial(port), 409],
  ]
  for (const [socket, expected] of cases) {
    const { status, body } = await refusedUpgrade(socket)
    assert.equal(status, expected)
    assertReplyMatchesContract('open_agent', status, body)
  }
  assert.equal((await refusedUpgrade(dial(port, '/v1/nothing'))).status, 404)
})

test('an unexpected error while a channel is opened gives 500 without the error’s message', async (t) => {
  const port = await listen(t, { useCases: { openChannel: () => Promise.reject(new Error('hunter2')) } })
  const { status, body } = await refusedUpgrade(dial(port))
  assert.equal(status, 500)
  assert.ok(!JSON.stringify(body).includes('hunter2'))
})

test('an upgrade to another protocol than WebSocket is ignored, and the request gets a normal reply', async (t) => {
  const port = await listen(t, {})
  const reply = await fetchRaw(
    port,
    `GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n`,
  )
  assert.match(reply, /^HTTP\/1\.1 200 /)
})

test('a method that no route has is answered like any other wrong method', async (t) => {
  const port = await listen(t, {})
  const head = `host: a\r\nauthorization: ${asCaller.authorization}\r\nconnection: close\r\n\r\n`
  const reply = await fetchRaw(port, `PROPFIND /v1/sandboxes HTTP/1.1\r\n${head}`)
  assert.match(reply, /^HTTP\/1\.1 405 [\s\S]*allow: GET, HEAD, POST/)
})

test('a body that announces too many bytes is refused before it is sent, and a caller without a key before that', async (t) => {
  const port = await listen(t, {})
  const post = (headers: string): string =>
    `POST /v1/sandboxes HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n${headers}\r\n\r\n`
  const large = await fetchRaw(port, post(`authorization: ${asCaller.authorization}\r\ncontent-length: 99999999`))
  assert.match(large, /^HTTP\/1\.1 413 [\s\S]*"code":"payload_too_large"/)
  const stranger = await fetchRaw(port, post('content-length: 99999999'))
  assert.match(stranger, /^HTTP\/1\.1 401 /)
})

test('bytes that are not HTTP get the error envelope', async (t) => {
  const port = await listen(t, {})
  assert.match(await fetchRaw(port, 'nonsense\r\n\r\n'), /^HTTP\/1\.1 400 [\s\S]*"code":"invalid_request"/)
})

test('a client that answers no ping is closed with that reason', async (t) => {
  const channel = new PassThrough()
  const port = await listen(t, {
    ...withChannel(channel),
    server: { settings: { ...DEFAULT_SERVER_SETTINGS, pingMs: 50 } },
  })
  const socket = new WebSocket(`ws://127.0.0.1:${String(port)}${PATH}`, { headers: asCaller, autoPong: false })
  await once(socket, 'open', hangLimit())
  const [code] = await once(socket, 'close', hangLimit())
  assert.equal(code, 4408)
  await until(() => channel.destroyed)
})

test('closing the server closes every WebSocket with 1001 and does not wait for silent ones', async () => {
  const app = makeHttpWorld(withChannel(new PassThrough()))
  await app.listen({ host: '127.0.0.1', port: 0 })
  const address = app.server.address()
  assert.ok(typeof address === 'object' && address !== null)
  const socket = dial(address.port)
  await once(socket, 'open', hangLimit())
  const closed = once(socket, 'close', hangLimit())
  await app.close()
  assert.equal((await closed)[0], 1001)
})

/** Makes use cases whose start waits until its signal aborts. `signal` resolves with the signal of the first start. */
function waitingStart(): { readonly options: WorldOptions; readonly signal: Promise<AbortSignal> } {
  const { promise: signal, resolve } = Promise.withResolvers<AbortSignal>()
  const startSandbox: UseCases['startSandbox'] = async (_caller, _ref, input) => {
    if (input.signal === null) throw new Error('a start that waits has no signal')
    resolve(input.signal)
    await aborted(input.signal)
    return theSandbox
  }
  return { options: { useCases: { startSandbox } }, signal }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    signal.addEventListener('abort', () => {
      resolve()
    })
  })
}

const START = `POST /v1/sandboxes/${SANDBOX_ID}/start?wait_for=running HTTP/1.1\r\nhost: a\r\nauthorization: ${asCaller.authorization}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}`

test('a client that disconnects aborts the signal of its request, and one that stays does not', async (t) => {
  const { options, signal } = waitingStart()
  const port = await listen(t, options)
  const socket = connect(port, '127.0.0.1')
  socket.write(START)
  const waiting = await signal
  // Another request is served in the meantime. A wrong abort of the first one would have happened by then.
  assert.match(
    await fetchRaw(port, 'GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n'),
    /^HTTP\/1\.1 200 /,
  )
  assert.equal(waiting.aborted, false)
  socket.destroy()
  await until(() => waiting.aborted)
})

test('closing the server ends the waits, whose replies are still sent, and the upgrades that were not answered', async () => {
  const { options, signal } = waitingStart()
  const opened = Promise.withResolvers<AbortSignal>()
  const openChannel: UseCases['openChannel'] = async (_caller, _id, gone) => {
    opened.resolve(gone)
    await aborted(gone)
    throw new Problem('unavailable')
  }
  const app = makeHttpWorld({ useCases: { ...options.useCases, openChannel } })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const address = app.server.address()
  assert.ok(typeof address === 'object' && address !== null)
  const socket = connect(address.port, '127.0.0.1')
  socket.write(START)
  const upgrade = dial(address.port)
  const broken = once(upgrade, 'error', hangLimit())
  await Promise.all([signal, opened.promise])
  let reply = ''
  socket.on('data', (data) => (reply += String(data)))
  await app.close()
  await until(() => socket.closed)
  assert.match(reply, /^HTTP\/1\.1 200 /)
  await broken
})

async function fetchRaw(port: number, text: string): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  socket.end(text)
  let reply = ''
  for await (const chunk of socket) reply += String(chunk)
  return reply
}

/** A limit that only keeps a test from hanging, also on a busy machine. */
function hangLimit(): { readonly signal: AbortSignal } {
  return { signal: AbortSignal.timeout(60_000) }
}

/** Resolves once a condition is true. Rejects after 60 s. */
async function until(claim: () => boolean): Promise<void> {
  await waitUntil(claim, 60_000)
}
