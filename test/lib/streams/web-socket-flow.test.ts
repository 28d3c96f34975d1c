import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { WebSocket } from 'ws'
import { makePacedSender } from '../../../src/lib/streams/web-socket-flow.ts'

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
