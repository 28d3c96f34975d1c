import assert from 'node:assert/strict'
import { duplexPair, type Duplex } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { frameHead } from '../../../src/contract/volumes/volume-protocol.ts'
import { ReceivedContent } from '../../../src/worker/volumes/received-content.ts'

type World = { readonly peer: Duplex; readonly content: ReceivedContent; readonly returned: () => number }

/** Content that begins with `first` and continues with what the peer writes. */
function receive(first: Buffer): World {
  const [peer, stream] = duplexPair()
  peer.on('error', () => undefined)
  stream.on('error', () => undefined)
  let returned = 0
  const release = (piece: Buffer): void => void (returned += piece.length)
  return { peer, content: new ReceivedContent(stream, { first, release }), returned: () => returned }
}

const frame = (text: string): Buffer => Buffer.concat([frameHead(text.length), Buffer.from(text)])

test('frames are found wherever the bytes are cut, and what follows the end is ignored', async () => {
  const bytes = Buffer.concat([frame('hello, '), frame('w'), frame('orld'), frameHead(0), Buffer.from('more')])
  for (let cut = 0; cut <= bytes.length; cut++) {
    const { peer, content } = receive(bytes.subarray(0, cut))
    peer.write(bytes.subarray(cut))
    assert.equal((await buffer(content)).toString(), 'hello, world', `cut at ${String(cut)}`)
  }
  const { peer, content, returned } = receive(Buffer.alloc(0))
  for (const byte of bytes) peer.write(Buffer.of(byte))
  assert.equal((await buffer(content)).toString(), 'hello, world')
  assert.equal(returned(), 4 * 8, 'the heads are given back, and the pieces belong to the reader')
})

test('content without bytes is empty', async () => {
  assert.equal((await buffer(receive(frameHead(0)).content)).length, 0)
})

test('content arrives at the pace of its reader', async () => {
  const { peer, content } = receive(frameHead(2 ** 40))
  const piece = Buffer.alloc(64 * 1024)
  let written = 0
  while (peer.write(piece)) {
    written += piece.length
    assert.ok(written < 16 * 1024 * 1024, 'nothing held the sender back')
    await new Promise(setImmediate)
  }
  content.destroy()
})

test('a stream that ends or breaks inside the content breaks the content, even if nobody reads it', async () => {
  for (const end of [(peer: Duplex) => void peer.end(), (peer: Duplex) => void peer.destroy()])
    for (const first of [frameHead(5), frame('hello'), frame('hello').subarray(0, 10), Buffer.alloc(3)]) {
      const { peer, content } = receive(first)
      end(peer)
      await assert.rejects(buffer(content))
      const unread = receive(first)
      end(unread.peer)
      await new Promise(setImmediate)
      await assert.rejects(buffer(unread.content))
    }
})

test('an end inside the content means that the client left, as in other requests', async () => {
  const { peer, content } = receive(frameHead(5))
  peer.end()
  await assert.rejects(buffer(content), { code: 'ECONNRESET' })
})

test('a number that is no safe integer breaks the content', async () => {
  await assert.rejects(buffer(receive(Buffer.alloc(8, 0xff)).content), /too long/)
})
