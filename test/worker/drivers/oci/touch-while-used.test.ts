import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo } from 'node:net'
import { test } from 'node:test'
import { touchWhileUsed } from '../../../../src/worker/drivers/oci/run/touch-while-used.ts'

test('a connection counts as a use in each second in which it carried bytes, and never once it is closed', async (t) => {
  const server = createServer((peer) => peer.pipe(peer)).listen(0, '127.0.0.1')
  t.after(() => server.close())
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  t.mock.timers.enable({ apis: ['setInterval'] })
  let touches = 0
  const socket = touchWhileUsed(connect(port, '127.0.0.1'), () => (touches += 1))
  const touchesOfNextSecond = (): number => {
    const before = touches
    t.mock.timers.tick(1_000)
    return touches - before
  }
  assert.equal(touches, 1, 'opening it is a use')
  await once(socket, 'connect')
  assert.equal(touchesOfNextSecond(), 0)
  socket.write('ping')
  await once(socket, 'data')
  assert.equal(touchesOfNextSecond(), 1)
  assert.equal(touchesOfNextSecond(), 0)
  socket.write('more')
  await once(socket, 'data')
  socket.destroy()
  await once(socket, 'close')
  assert.equal(touchesOfNextSecond(), 0)
})
