import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { makeLog } from '../../../src/lib/log.ts'
import type { Guest, GuestProcess } from '../../../src/worker/channel/guest.ts'
import { startExecOnPipes } from '../../../src/worker/drivers/oci/exec/exec-cli.ts'
import { makeLauncher } from '../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { makeFifoPool } from '../../../src/worker/drivers/oci/exec/fifo-pool.ts'
import { localHostCommands } from '../../../src/worker/processes/system-calls.ts'
import { connectByProcess } from '../../../src/worker/drivers/shared/tcp-stream.ts'
import { connectAgent, type AgentClient } from '../../support/agent-client.ts'
import { makeLocalGuest } from '../../support/local-guest.ts'
import { openTcp } from '../../support/tcp-client.ts'
import { startTcpServer } from '../../support/tcp-server.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'
import { resetSocket } from '../../../src/lib/reset-socket.ts'

const MIB = 1024 * 1024
const SCRIPT = join(import.meta.dirname, '../../../src/worker/perl/guest/tcp.pl')
const LIMIT_MS = 60_000

/**
 * Makes a guest that opens connections on this machine by the helper script `tcp.pl`, which the `oci` driver runs in
 * sandboxes.
 */
function makeScriptGuest(): Guest {
  const local = makeLocalGuest()
  const request = { cmd: 'perl', env: ['LC_ALL=C'], cwd: null, user: null, tty: null, rlimits: [] }
  return {
    ...local,
    connect: (target, signal) =>
      connectByProcess((args) => local.exec({ ...request, args: [SCRIPT, ...args] }), target, signal),
  }
}

/** The number of child processes that run the helper script. */
function carriers(): number {
  return readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false
    try {
      const isOwn = readFileSync(`/proc/${pid}/status`, 'utf8').includes(`PPid:\t${String(process.pid)}\n`)
      return isOwn && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(SCRIPT)
    } catch {
      return false // it has ended
    }
  }).length
}

async function readAll(socket: Socket): Promise<Buffer> {
  const pieces: Buffer[] = []
  for await (const piece of socket) if (piece instanceof Buffer) pieces.push(piece)
  return Buffer.concat(pieces)
}

/** More bytes than all buffers between the two ends of a connection can hold. */
const FLOOD_BYTES = 64 * MIB

/** Waits until a stream to which a flood was written no longer drains, and asserts that some data is left in it. */
async function waitUntilBlocked(stream: Duplex): Promise<void> {
  await waitUntilUnchanged(() => FLOOD_BYTES + MIB - stream.writableLength)
  assert.ok(stream.writableLength > 0, 'all data was sent')
}

const GUESTS: readonly (readonly [name: string, make: () => Guest])[] = [
  ['sockets of this process', makeLocalGuest],
  ['the script for sandboxes', makeScriptGuest],
]

for (const [name, makeGuest] of GUESTS) {
  describe(`TCP streams by ${name}`, { skip: process.platform === 'linux' ? false : 'needs Linux' }, () => {
    const guest = makeGuest()

    test('bytes are echoed, each direction ends by itself after its data, and closed comes last', async () => {
      const server = await startTcpServer((socket) => {
        socket.pipe(socket)
      })
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      await tcp.connected()
      tcp.send('hello')
      await waitUntil(() => tcp.data().toString() === 'hello')
      tcp.send(Buffer.from([0, 255, 10, 13]))
      tcp.end()
      const last = await tcp.last()
      assert.deepEqual([last.type, last.flags], ['core.tcp.closed', 1])
      assert.deepEqual(tcp.data(), Buffer.from('hello\x00\xff\n\r', 'latin1'))
      assert.deepEqual(tcp.types(), ['connected', 'data', 'eof', 'closed'])
      await client.hangUp()
      await server.close()
    })

    test('the other end may end first and still receives the client’s data', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      const socket = await server.accept()
      socket.end('bye')
      await client.next(({ type }) => type === 'core.tcp.eof', LIMIT_MS)
      assert.equal(tcp.data().toString(), 'bye')
      tcp.send('after its end')
      tcp.end()
      assert.equal((await readAll(socket)).toString(), 'after its end')
      assert.equal((await tcp.last()).type, 'core.tcp.closed')
      await client.hangUp()
      await server.close()
    })

    test('the client may end first and still gets the answer', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      tcp.send('question')
      tcp.end()
      tcp.send('nothing follows an end')
      const socket = await server.accept()
      assert.equal((await readAll(socket)).toString(), 'question')
      socket.end(Buffer.alloc(MIB, 'a'))
      assert.equal((await tcp.last()).type, 'core.tcp.closed')
      assert.equal(tcp.dataBytes(), MIB)
      await client.hangUp()
      await server.close()
    })

    test('data and an end that arrive before the connection is open are kept in order', async () => {
      const server = await startTcpServer()
      let proceed: (() => void) | null = null
      const slow: Guest = {
        ...guest,
        async connect(target, signal) {
          await new Promise<void>((resolve) => (proceed = resolve))
          return await guest.connect(target, signal)
        },
      }
      const client = connectAgent(slow)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      const pieces = Array.from({ length: 20 }, () => randomBytes(MIB))
      for (const piece of pieces) tcp.send(piece)
      tcp.end()
      // This is more than the limit for pending input, so the rest stays with the client.
      const connectNow = await waitUntil(() => proceed ?? undefined)
      await waitUntil(() => client.stream.writableLength < 13 * MIB, LIMIT_MS)
      for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve))
      assert.ok(client.stream.writableLength > 8 * MIB, String(client.stream.writableLength))
      connectNow()
      assert.ok((await readAll(await server.accept())).equals(Buffer.concat(pieces)))
      await client.hangUp()
      await server.close()
    })

    test('a refused connection and an unknown host fail with a message and nothing else', async () => {
      const server = await startTcpServer()
      const { port } = server
      await server.close()
      const client = connectAgent(guest)
      const refused = openTcp(client, 1, { host: '127.0.0.1', port })
      const unknown = openTcp(client, 2, { host: 'no-such-host.invalid', port })
      refused.send('into the void')
      assert.match(
        String((await refused.last()).payload['error']),
        new RegExp(`^connect 127\\.0\\.0\\.1:${String(port)}: connection refused \\(os error 111\\)$`, 'i'),
      )
      const { error } = (await unknown.last()).payload
      assert.match(String(error), /^connect no-such-host\.invalid:\d+: /)
      assert.deepEqual(unknown.types(), ['failed'])
      await client.hangUp()
    })

    test('a connection that the other end resets fails after the received data was delivered', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      const socket = await server.accept()
      socket.write('last words')
      await waitUntil(() => tcp.data().toString() === 'last words', LIMIT_MS)
      resetSocket(socket)
      assert.equal((await tcp.last()).type, 'core.tcp.failed')
      assert.deepEqual(tcp.types(), ['connected', 'data', 'failed'])
      await client.hangUp()
      await server.close()
    })

    test('a close cuts the connection without an answer and leaves nothing behind', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      const socket = await server.accept()
      await tcp.connected()
      tcp.close()
      tcp.close()
      await readAll(socket)
      await waitUntil(() => carriers() === 0)
      client.send(9, 'core.ping', {})
      await client.next(({ type }) => type === 'core.pong')
      assert.deepEqual(tcp.types(), ['connected'])
      await client.hangUp()
      await server.close()
    })

    test('when a client disconnects, its open connections and those being opened are closed', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const there = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      await there.connected()
      const socket = await server.accept()
      for (let id = 2; id < 8; id++) openTcp(client, id, { host: '127.0.0.1', port: server.port })
      client.send(9, 'core.ping', {})
      await client.next(({ type }) => type === 'core.pong')
      await client.hangUp()
      assert.equal(carriers(), 0)
      await readAll(socket)
      await waitUntil(() => server.sockets.every((one) => one.readableEnded || one.destroyed || one.resume() === null))
      await server.close()
    })

    test('64 connections at once each get their own bytes', async () => {
      const server = await startTcpServer((socket) => {
        socket.pipe(socket)
      })
      const client = connectAgent(guest)
      const payloads = Array.from({ length: 64 }, () => randomBytes(40_000))
      const all = payloads.map((_, at) => openTcp(client, at + 1, { host: '127.0.0.1', port: server.port }))
      for (const [at, tcp] of all.entries()) {
        tcp.send(payloads[at] ?? '')
        tcp.end()
      }
      for (const [at, tcp] of all.entries()) {
        assert.equal((await tcp.last(120_000)).type, 'core.tcp.closed')
        assert.ok(tcp.data().equals(payloads[at] ?? Buffer.alloc(0)))
      }
      await client.hangUp()
      await server.close()
    })

    test('a client that stops reading blocks the other end, and receives all data when it continues', async () => {
      const server = await startTcpServer()
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      await tcp.connected()
      const socket = await server.accept()
      client.stream.pause()
      const piece = randomBytes(MIB)
      for (let sent = 0; sent < FLOOD_BYTES; sent += MIB) socket.write(piece)
      await waitUntilBlocked(socket)
      client.stream.resume()
      socket.end()
      await client.next(({ type }) => type === 'core.tcp.eof', LIMIT_MS)
      assert.equal(tcp.dataBytes(), FLOOD_BYTES)
      const expected = createHash('sha256')
      for (let sent = 0; sent < FLOOD_BYTES; sent += MIB) expected.update(piece)
      assert.equal(createHash('sha256').update(tcp.data()).digest('hex'), expected.digest('hex'))
      await client.hangUp()
      await server.close()
    })

    test('when the other end stops reading, the client is blocked, and the other end receives all data when it continues', async () => {
      const server = await startTcpServer((socket) => {
        socket.pause()
      })
      const client = connectAgent(guest)
      const tcp = openTcp(client, 1, { host: '127.0.0.1', port: server.port })
      await tcp.connected()
      const socket = await server.accept()
      const piece = randomBytes(MIB)
      for (let sent = 0; sent < FLOOD_BYTES; sent += MIB) tcp.send(piece)
      await waitUntilBlocked(client.stream)
      tcp.end()
      const got = await readAll(socket)
      assert.equal(got.length, FLOOD_BYTES)
      for (let at = 0; at < FLOOD_BYTES; at += MIB) assert.ok(got.subarray(at, at + MIB).equals(piece))
      await client.hangUp()
      await server.close()
    })

    test('whatever the order of sends, ends and cuts, bytes arrive in order and one terminal message ends each', async () => {
      const server = await startTcpServer()
      const anyStep = fc.record({
        kind: fc.constantFrom('send', 'answer', 'send', 'answer', 'end', 'finish', 'yield', 'close'),
        stream: fc.nat({ max: 2 }),
        bytes: fc.oneof(fc.nat({ max: 10 }), fc.nat({ max: 300_000 })),
      })
      let accepted = 0
      await fc.assert(
        fc.asyncProperty(fc.array(anyStep, { maxLength: 40 }), async (steps) => {
          const client = connectAgent(guest)
          const streams = await openThree(client, server.port, async () => {
            await waitUntil(() => server.sockets.length > accepted, LIMIT_MS)
            return server.sockets[accepted++]
          })
          for (const [at, { kind, stream, bytes }] of steps.entries()) {
            const one = streams[stream]
            if (one === undefined) continue
            const data = Buffer.alloc(bytes, at)
            if (kind === 'yield') await new Promise((resolve) => setImmediate(resolve))
            else if (kind === 'close') {
              one.isCut = true
              one.tcp.close()
            } else if (kind === 'send' && !one.hasEnded && !one.isCut) {
              one.tcp.send(data)
              one.sent.push(data)
            } else if (kind === 'end') {
              one.hasEnded = true
              one.tcp.end()
            } else if (kind === 'answer' && !one.socket.writableEnded) {
              one.socket.write(data)
              one.answered.push(data)
            } else if (kind === 'finish') one.socket.end()
          }
          for (const { tcp, socket, isCut } of streams) {
            if (!isCut) tcp.end()
            socket.end()
          }
          for (const { tcp, isCut, sent, answered, got } of streams) {
            const all = await got
            if (isCut) {
              const begun = Buffer.concat(sent).subarray(0, all.length)
              assert.ok(all.equals(begun))
              assert.ok(!tcp.types().some((type) => type === 'failed'))
              continue
            }
            assert.equal((await tcp.last()).type, 'core.tcp.closed')
            assert.ok(all.equals(Buffer.concat(sent)))
            assert.ok(tcp.data().equals(Buffer.concat(answered)))
            assert.deepEqual(tcp.types().slice(-2), ['eof', 'closed'])
          }
          await client.hangUp()
          assert.equal(carriers(), 0)
        }),
        { numRuns: 25 },
      )
      await server.close()
    })
  })
}

type Stream = {
  readonly tcp: ReturnType<typeof openTcp>
  readonly socket: Socket
  /** Resolves with all data that the server received. */
  readonly got: Promise<Buffer>
  readonly sent: Buffer[]
  readonly answered: Buffer[]
  hasEnded: boolean
  isCut: boolean
}

async function openThree(
  client: AgentClient,
  port: number,
  accept: () => Promise<Socket | undefined>,
): Promise<readonly Stream[]> {
  const streams: Stream[] = []
  for (const id of [1, 2, 3]) {
    const tcp = openTcp(client, id, { host: '127.0.0.1', port })
    const socket = await accept()
    assert.ok(socket !== undefined)
    await tcp.connected()
    streams.push({ tcp, socket, got: readUntilCut(socket), sent: [], answered: [], hasEnded: false, isCut: false })
  }
  return streams
}

async function readUntilCut(socket: Socket): Promise<Buffer> {
  const pieces: Buffer[] = []
  socket.on('data', (piece: Buffer) => pieces.push(piece))
  await new Promise<void>((resolve) => {
    socket.once('end', resolve)
    socket.once('close', () => {
      resolve()
    })
  })
  return Buffer.concat(pieces)
}

test('a connection that does not open within 30 s fails, and the attempt is aborted', async () => {
  const clock = makeTestClock()
  let isAborted = false
  const silent: Guest = {
    ...makeLocalGuest(),
    connect: (_target, signal) =>
      new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          isAborted = true
          reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
        })
      }),
  }
  const client = connectAgent(silent, { deps: { clock } })
  const tcp = openTcp(client, 1, { host: '192.0.2.1', port: 9 })
  await waitUntil(() => clock.sleepers === 1)
  clock.advance(29_999)
  assert.equal(isAborted, false)
  clock.advance(1)
  assert.deepEqual((await tcp.last()).payload, { error: 'connect 192.0.2.1:9 timed out' })
  assert.deepEqual([isAborted, clock.sleepers], [true, 0])
  await client.hangUp()
})

test('for an unknown id, data is answered with a failure, and an end or close is ignored; a live id can’t be used twice', async () => {
  const server = await startTcpServer()
  const client = connectAgent(makeLocalGuest(), { deps: { limits: { sessions: 1 } } })
  client.send(5, 'core.tcp.eof', {})
  client.send(5, 'core.tcp.close', {})
  client.send(5, 'core.tcp.data', { data: Buffer.from('x') })
  const unknown = await client.next(({ id }) => id === 5)
  assert.deepEqual([unknown.type, unknown.payload], ['core.tcp.failed', { error: 'unknown TCP session: 5' }])
  const tcp = openTcp(client, 6, { host: '127.0.0.1', port: server.port })
  await tcp.connected()
  client.send(6, 'core.tcp.connect', { host: '127.0.0.1', port: server.port })
  assert.equal((await client.next(({ type }) => type === 'core.error')).payload['kind'], 'invalid_session')
  const full = openTcp(client, 7, { host: '127.0.0.1', port: server.port })
  assert.match(String((await full.last()).payload['error']), /too many open sessions/)
  await client.hangUp()
  await server.close()
})

test('a request without a valid host or port is answered with core.tcp.failed', async () => {
  const client = connectAgent(makeLocalGuest())
  const requests = [{ host: '', port: 1 }, { host: 'a\0b', port: 1 }, { host: 'a'.repeat(300), port: 1 }, { host: 'a', port: 65_536 }, { port: 1 }] // prettier-ignore
  for (const [at, payload] of requests.entries()) client.send(at + 1, 'core.tcp.connect', payload)
  for (const [at] of requests.entries()) {
    const reply = await client.next(({ id }) => id === at + 1)
    assert.deepEqual([reply.type, reply.flags], ['core.tcp.failed', 1])
  }
  await client.hangUp()
})

test('the message of a bug in a guest’s connection is hidden from the client', async () => {
  const guest: Guest = { ...makeLocalGuest(), connect: () => Promise.reject(new Error('path /secret/of/the/host')) }
  const client = connectAgent(guest)
  const { payload } = await openTcp(client, 1, { host: 'a', port: 1 }).last()
  assert.deepEqual(payload, { error: 'connect a:1: the connection failed' })
  await client.hangUp()
})

test('whatever a sandbox runs in place of the process that carries a connection, the connection ends', async () => {
  const local = makeLocalGuest()
  const scripts: readonly (readonly [script: string, last: string])[] = [
    ['echo nonsense >&2; exit 0', 'failed'],
    ['echo connected >&2; printf abc; exit 0', 'failed'],
    ['echo connected >&2; printf abcdef; echo eof 3 >&2; printf ghi; sleep 0.1; exit 0', 'closed'],
    ['echo connected >&2; echo eof -1 >&2; echo eof 1 >&2; echo eof x >&2; printf a', 'failed'],
    ['echo connected >&2; echo eof 9999 >&2; exit 0', 'failed'],
    ['echo connected >&2; echo connected >&2; kill -9 $$', 'failed'],
    ['echo connected >&2; exec 0<&- 1>&-; echo failed words >&2; exit 1', 'failed'],
    ['head -c 20000000 /dev/zero >&2; echo failed >&2; exit 1', 'failed'],
  ]
  const client = connectAgent({
    ...local,
    connect: (target, signal) => {
      const script = scripts[target.port]?.[0] ?? ''
      const start = (): ReturnType<Guest['exec']> =>
        local.exec({ cmd: 'sh', args: ['-c', script], env: [], cwd: null, user: null, tty: null, rlimits: [] })
      return connectByProcess(start, target, signal)
    },
  })
  const all = scripts.map((_, port) => openTcp(client, port + 1, { host: 'a', port }))
  for (const [at, tcp] of all.entries()) {
    tcp.send('anything')
    assert.equal((await tcp.last()).type, `core.tcp.${scripts[at]?.[1] ?? ''}`, scripts[at]?.[0])
  }
  await client.hangUp()
})

test('a connection ends even if its reader starts late and the sandbox sends more bytes than it announced', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-tcp-'))
  t.after(() => {
    rmSync(folder, { recursive: true })
  })
  const fifoPool = makeFifoPool(folder, { commands: localHostCommands, log: makeLog('silent') })
  const launcher = makeLauncher(makeLog('silent'))
  t.after(() => {
    launcher.close()
  })
  const bytes = 65_536 // the number of bytes that a stream reads ahead
  const script = `echo connected >&2; head -c ${String(bytes)} /dev/zero; read go; echo eof ${String(bytes)} >&2; printf more; cat >/dev/null`
  const { promise: exited, resolve } = Promise.withResolvers<number>()
  const start = async (): Promise<GuestProcess> => {
    const carrier = await startExecOnPipes({ fifoPool, launcher, commandCgroups: [] }, ['sh', '-c', script])
    void carrier.ended.then(({ code }) => {
      resolve(code ?? -1)
    })
    const { stdin, stdout, stderr, pid } = carrier
    return { stdin, stdout, stderr, pid, resize: () => undefined, signal: (n) => process.kill(-pid, n), exited }
  }
  const stream = await connectByProcess(start, { host: 'a', port: 1 }, new AbortController().signal)
  stream.read(0)
  await waitUntil(() => stream.readableLength === bytes)
  stream.end('go\n')
  await exited
  const closed = once(stream, 'close', { signal: AbortSignal.timeout(LIMIT_MS) })
  let received = 0
  stream.on('data', (piece: Buffer) => {
    received += piece.length
  })
  await closed
  assert.equal(received, bytes)
})
