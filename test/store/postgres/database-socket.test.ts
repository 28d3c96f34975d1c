import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { DatabaseSocket } from '../../../src/store/postgres/database-socket.ts'

async function connect(t: TestContext) {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const accepted = once(server, 'connection')
  const socket = new DatabaseSocket()
  socket.connect((server.address() as AddressInfo).port, '127.0.0.1') // it listens on TCP
  const [peer] = await accepted
  return { socket, peer }
}

test('what is large arrives whole and in its order, and other work is done meanwhile', async (t) => {
  const { socket, peer } = await connect(t)
  const received = buffer(peer)
  const large = Buffer.from(Array.from({ length: 200_000 }, (_, n) => `${String(n)};`).join(''))
  let turns = 0
  const counting = setInterval(() => (turns += 1), 1)
  socket.cork()
  socket.write('before;')
  socket.write(large)
  socket.uncork()
  socket.write(large)
  socket.end('after')
  const all = await received
  clearInterval(counting)
  assert.ok(all.equals(Buffer.concat([Buffer.from('before;'), large, large, Buffer.from('after')])))
  assert.ok(turns > 5, `${String(turns)} turns`)
})

test('a connection that is cut while something large is written reports it', async (t) => {
  const { socket, peer } = await connect(t)
  const failed = Promise.withResolvers<unknown>()
  socket.on('error', failed.resolve)
  socket.write(Buffer.alloc(64 * 1024 * 1024))
  peer.resetAndDestroy()
  assert.ok((await failed.promise) instanceof Error)
})
