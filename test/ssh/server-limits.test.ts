import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import ssh2 from 'ssh2'
import { makeRequestRateLimiter } from '../../src/control/requests/request-rate-limiter.ts'
import { startSshServer, type SshServer } from '../../src/ssh/server.ts'
import { countPerTurn } from '../support/most-per-turn.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { makeTestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

// The limits of the SSH server before a client has proved a key.

const CONNECTIONS = { capacity: 4, perAddress: 3 }
const LOGIN_LIMIT_MS = 60_000
const ATTEMPTS_MAX = 20
const NO_LIMIT = { perSec: 0, burst: 0 }

describe('the SSH server', () => {
  const clock = makeTestClock()
  let control: TestControl
  let server: SshServer
  const opened: Socket[] = []

  before(async () => {
    control = await makeTestControl({ clock })
    const rates = makeRequestRateLimiter({ key: NO_LIMIT, org: NO_LIMIT, failedAuthentications: NO_LIMIT }, clock)
    server = await startSshServer(control.deps, { host: '127.0.0.1', port: 0, connections: CONNECTIONS, rates })
  })
  after(async () => {
    for (const socket of opened) socket.destroy()
    await server[Symbol.asyncDispose]()
    await control.close()
  })

  /** Connects from an address of loopback. Resolves with the first line of the server, or with null if it closes at once. */
  async function open(localAddress: string): Promise<{ readonly socket: Socket; readonly line: string | null }> {
    const socket = connect({ host: '127.0.0.1', port: server.port, localAddress })
    opened.push(socket)
    socket.on('error', () => undefined)
    const line = await Promise.race([once(socket, 'data').then(([data]) => String(data)), once(socket, 'close').then(() => null)]) // prettier-ignore
    return { socket, line }
  }
  async function close(socket: Socket): Promise<void> {
    const closed = once(socket, 'close')
    socket.destroy()
    await closed
  }

  test('one address has at most its share of the connections, and all together have the capacity', async () => {
    const first = [await open('127.0.0.1'), await open('127.0.0.1'), await open('127.0.0.1')]
    for (const { line } of first) assert.match(line ?? '', /^SSH-2\.0-Sandyard\r\n/)
    assert.equal((await open('127.0.0.1')).line, null, 'the address has its share')
    const other = await open('127.0.0.2')
    assert.match(other.line ?? '', /^SSH-2\.0/)
    assert.equal((await open('127.0.0.3')).line, null, 'the capacity is used up')
    const [one] = first
    assert.ok(one)
    await close(one.socket)
    await waitUntil(async () => (await open('127.0.0.3')).line !== null)
    await Promise.all(opened.filter((socket) => !socket.closed).map(close))
  })

  test('a client that proves no key within 60 s is disconnected, whatever it sends meanwhile', async () => {
    const silent = await waitUntil(async () => {
      const found = await open('127.0.0.1')
      return found.line === null ? false : found
    })
    const talking = await open('127.0.0.1')
    talking.socket.write('SSH-2.0-slow\r\n')
    clock.advance(LOGIN_LIMIT_MS - 1)
    await new Promise((resolve) => setImmediate(resolve))
    assert.deepEqual([silent.socket.closed, talking.socket.closed], [false, false])
    clock.advance(1)
    await waitUntil(() => silent.socket.closed && talking.socket.closed)
  })

  test('a connection that tries 20 times is ended', async () => {
    let tries = 0
    const client = new ssh2.Client()
    let isClosed = false
    client.on('close', () => {
      isClosed = true
    })
    client.on('error', () => undefined)
    client.connect({
      host: '127.0.0.1',
      port: server.port,
      localAddress: '127.0.0.4',
      username: 'nobody',
      authHandler: (_left, _partial, next) => {
        tries += 1
        next({ type: 'none', username: 'nobody' })
      },
    })
    await waitUntil(() => isClosed)
    assert.equal(tries, ATTEMPTS_MAX + 1)
  })

  test('packets of 16 bytes before a key are read a few kilobytes in a turn', async (t) => {
    const perTurn = countPerTurn()
    let bytes = 0
    const onSocket = (message: unknown): void => {
      const { socket } = message as { readonly socket: Socket }
      socket.on('data', (part: Buffer) => {
        bytes += part.length
        perTurn.count(part.length)
      })
    }
    subscribe('net.server.socket', onSocket)
    t.after(() => unsubscribe('net.server.socket', onSocket))
    const ignored = Buffer.from([0, 0, 0, 12, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    const load = Buffer.concat(Array.from({ length: 6_000 }, () => ignored))
    for (let n = 0; n < 3; n++) {
      const { socket } = await open('127.0.0.5')
      socket.write('SSH-2.0-x\r\n')
      socket.write(load)
    }
    await waitUntil(() => bytes >= 3 * load.length)
    assert.ok(perTurn.most() <= 16 * 1024, `${String(perTurn.most())} bytes in a turn`)
    await Promise.all(opened.filter((socket) => !socket.closed).map(close))
  })

  test('bytes that are not SSH end only their own connection', async () => {
    const other = await waitUntil(async () => {
      const found = await open('127.0.0.2')
      return found.line === null ? false : found
    })
    const broken = await open('127.0.0.1')
    broken.socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(5_000))
    await waitUntil(() => broken.socket.closed)
    assert.equal(other.socket.closed, false)
  })
})
