import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { test } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { makePacedSender, messageBytes, paceMessages } from '../../../src/lib/streams/web-socket-flow.ts'
import { makePiecePacer } from '../../../src/lib/turns/piece-pacer.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'
import { waitUntil } from '../../support/wait.ts'

/** A receiver that takes nothing until `take` is called. It has the two members of a WebSocket that a sender uses. */
function makeReceiver() {
  const waiting: { readonly bytes: number; readonly sent: () => void }[] = []
  const send = (message: Buffer, _options: unknown, sent: () => void): void => {
    waiting.push({ bytes: message.length, sent })
  }
  const socket = {
    get bufferedAmount() {
      return waiting.reduce((sum, { bytes }) => sum + bytes, 0)
    },
    send: send as WebSocket['send'],
  }
  return { socket, waiting, take: () => waiting.shift()?.sent() }
}

for (const [what, bytes] of [
  ['a byte', 1],
  ['64 KiB', 64 * 1024],
] as const)
  test(`a source of messages of ${what} is paused while too many are unsent, and goes on once few are left`, () => {
    const { socket, waiting, take } = makeReceiver()
    let isPaused = false
    const source = { pause: () => (isPaused = true), resume: () => (isPaused = false) }
    const send = makePacedSender(socket, source)
    const message = Buffer.alloc(bytes)
    for (let round = 0; round < 3; round++) {
      for (let n = 0; n < 100_000 && !isPaused; n++) send(message)
      assert.ok(isPaused)
      const most = waiting.length
      assert.ok(most <= 1025 && most * bytes <= 1024 * 1024 + bytes, `${String(most)} messages wait`)
      while (isPaused && waiting.length > 0) take()
      assert.equal(isPaused, false)
      assert.ok(waiting.length > 0 && waiting.length <= most / 4, `${String(waiting.length)} messages are left`)
    }
  })

test('small messages of several servers are taken few in a turn, and all arrive in order', async (context) => {
  const server = createServer().listen(0, '127.0.0.1')
  context.after(() => {
    server.close()
    server.closeAllConnections()
    for (const socket of sockets.clients) socket.terminate()
  })
  const sockets = new WebSocketServer({ noServer: true })
  server.on('upgrade', (request, connection: Duplex, head: Buffer) => {
    sockets.handleUpgrade(request, connection, head, () => {
      const frame = (n: number): Buffer => Buffer.from([0x82, 1, n % 256])
      connection.write(Buffer.concat(Array.from({ length: 10_000 }, (_, n) => frame(n))))
    })
  })
  await once(server, 'listening')
  const pacer = makePiecePacer(0)
  const perTurn = countPerTurn()
  const { port } = server.address() as AddressInfo
  const clients = Array.from({ length: 4 }, () => {
    const socket = new WebSocket(`ws://127.0.0.1:${String(port)}`)
    paceMessages(socket, pacer.paceOf('org'))
    const received: number[] = []
    socket.on('message', (data) => {
      perTurn.count()
      received.push(...messageBytes(data))
    })
    return { socket, received }
  })
  await waitUntil(() => clients.every(({ received }) => received.length === 10_000))
  // After 512 messages in a turn, no further part begins. A part of 1 KiB has 342.
  assert.ok(perTurn.most() <= 512 + 342, `${String(perTurn.most())} messages in a turn`)
  for (const { socket, received } of clients) {
    assert.deepEqual(
      received,
      Array.from({ length: 10_000 }, (_, n) => n % 256),
    )
    socket.terminate()
  }
})
