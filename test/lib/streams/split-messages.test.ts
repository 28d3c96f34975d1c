import assert from 'node:assert/strict'
import { once } from 'node:events'
import { duplexPair } from 'node:stream'
import { test } from 'node:test'
import { splitMessages } from '../../../src/lib/streams/split-messages.ts'
import { makePiecePacer } from '../../../src/lib/turns/piece-pacer.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'

const BYTE_FRAME = Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0x61])
const PONG = Buffer.from([0x8a, 0x80, 0, 0, 0, 0])
/** How many frames a read has. */
const FRAMES = 9_000

const repeat = (frame: Buffer): Buffer => Buffer.concat(Array.from({ length: FRAMES }, () => frame))

function pacedConnections(count: number) {
  const pacer = makePiecePacer(0)
  return Array.from({ length: count }, () => {
    const [client, server] = duplexPair()
    return { client, split: splitMessages(server, { limitBytes: 1_000, pace: pacer.paceOf('org') }) }
  })
}

for (const [what, frame] of Object.entries({ 'messages of a byte': BYTE_FRAME, pongs: PONG }))
  test(`${what} of several connections are taken few in a turn, and arrive whole`, async () => {
    const perTurn = countPerTurn()
    const connections = pacedConnections(4)
    const arrived = connections.map(async ({ client, split }) => {
      const pieces: Buffer[] = []
      split.on('data', (piece: Buffer) => {
        perTurn.count()
        pieces.push(piece)
      })
      client.end(repeat(frame))
      await once(split, 'end')
      return Buffer.concat(pieces)
    })
    for (const bytes of await Promise.all(arrived)) assert.ok(bytes.equals(repeat(frame)))
    // Each frame is shown in two pieces at most. After 512 frames in a turn, each of the other connections takes one more.
    assert.ok(perTurn.most() <= 2 * (512 + 4), `${String(perTurn.most())} pieces in a turn`)
  })

test('few frames wait for a reader that is paused, and all arrive once it reads on', async () => {
  const [{ client, split }] = pacedConnections(1) as [ReturnType<typeof pacedConnections>[0]]
  split.pause()
  const sent = repeat(BYTE_FRAME)
  for (let at = 0; at < sent.length; at += 700) {
    client.write(sent.subarray(at, at + 700)) // 100 frames, so no turn has too many
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.ok(split.readableLength <= 256 * BYTE_FRAME.length, `${String(split.readableLength)} bytes wait`)
  client.end()
  let bytes = 0
  split.on('data', (piece: Buffer) => void (bytes += piece.length))
  split.resume()
  await once(split, 'end')
  assert.equal(bytes, sent.length)
})
