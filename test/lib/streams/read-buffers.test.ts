import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import { makeReadBuffers, type ReadBuffers } from '../../../src/lib/streams/read-buffers.ts'

const MIB = 1024 * 1024

/** Connects to a server that sends `bytes`, with a socket that reads into `buffers`. */
async function receive(
  t: TestContext,
  buffers: ReadBuffers,
  bytes: Buffer,
  show: (chunk: Buffer, socket: Socket) => void,
): Promise<void> {
  const server = createServer((peer) => peer.end(bytes)).listen(0, '127.0.0.1')
  t.after(() => server.close())
  await once(server, 'listening')
  const address = server.address()
  assert.ok(typeof address === 'object' && address !== null)
  const onread = buffers.onread((chunk) => {
    show(chunk, socket)
  })
  const socket = connect({ host: '127.0.0.1', port: address.port, onread })
  await once(socket, 'close', { signal: AbortSignal.timeout(60_000) })
}

function countingBytes(size: number): Buffer {
  const bytes = Buffer.alloc(size)
  for (let at = 0; at < size; at += 4) bytes.writeUInt32LE(at, at)
  return bytes
}

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')

test('bytes stay as they are until they are given back, and then their memory is used again', async (t) => {
  const buffers = makeReadBuffers()
  const sent = countingBytes(16 * MIB)
  const all = createHash('sha256')
  const memories = new Set<ArrayBufferLike>()
  const held: { readonly piece: Buffer; readonly was: string }[] = []
  const release = (): void => {
    const first = held.shift()
    if (first === undefined) return
    assert.equal(digest(first.piece), first.was, 'bytes changed while they were lent')
    buffers.release(first.piece)
  }
  await receive(t, buffers, sent, (chunk) => {
    all.update(chunk)
    const half = chunk.length >> 1
    for (const piece of [chunk.subarray(0, half), chunk.subarray(half)]) {
      buffers.hold(piece)
      if (chunk.length >= 16 * 1024) memories.add(piece.buffer) // smaller ones are copies
      held.push({ piece, was: digest(piece) })
    }
    while (held.length > 9) release() // the halves of a chunk are given back at different times
  })
  while (held.length > 0) release()
  assert.equal(all.digest('hex'), digest(sent))
  assert.ok(memories.size < 40, `${String(memories.size)} buffers were made for 256 chunks`)
})

test('bytes that nobody gives back, or not all of which were, keep their memory', async (t) => {
  const buffers = makeReadBuffers()
  const sent = countingBytes(4 * MIB)
  const kept: Buffer[] = []
  await receive(t, buffers, sent, (chunk) => {
    buffers.hold(chunk)
    kept.push(chunk)
    buffers.release(chunk.subarray(1))
  })
  assert.ok(Buffer.concat(kept).equals(sent))
})

test('small reads are copied, and bytes that were never lent are ignored', async (t) => {
  const buffers = makeReadBuffers()
  const kept: Buffer[] = []
  await receive(t, buffers, Buffer.from('a few bytes'), (chunk) => {
    buffers.hold(chunk)
    buffers.release(chunk)
    kept.push(chunk)
  })
  assert.equal(Buffer.concat(kept).toString(), 'a few bytes')
  buffers.release(Buffer.alloc(10))
})

test('a chunk of which nothing was lent is used again at once', async (t) => {
  const buffers = makeReadBuffers()
  const memories = new Set<ArrayBufferLike>()
  await receive(t, buffers, countingBytes(8 * MIB), (chunk) => {
    if (chunk.length >= 16 * 1024) memories.add(chunk.buffer)
  })
  assert.equal(memories.size, 1)
})

test('a socket that is paused reads nothing, and goes on where it stopped', async (t) => {
  const buffers = makeReadBuffers()
  const sent = countingBytes(4 * MIB)
  const kept: Buffer[] = []
  let [isPaused, pauses] = [false, 0]
  await receive(t, buffers, sent, (chunk, socket) => {
    assert.equal(isPaused, false)
    kept.push(Buffer.from(chunk))
    if (++pauses % 4 !== 0) return
    isPaused = true
    socket.pause()
    setImmediate(() => {
      isPaused = false
      socket.resume()
    })
  })
  assert.ok(Buffer.concat(kept).equals(sent))
})
