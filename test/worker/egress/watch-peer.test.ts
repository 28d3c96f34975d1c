import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect as connectHttp2, performServerHandshake, type ServerHttp2Session } from 'node:http2'
import { connect, createServer, type AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { watchSession } from '../../../src/worker/egress/watch-peer.ts'

const MINUTE_MS = 60_000

async function openSession(t: TestContext): Promise<ServerHttp2Session> {
  const listener = createServer()
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const socket = connect({ host: '127.0.0.1', port: (listener.address() as AddressInfo).port, allowHalfOpen: true })
  const client = connectHttp2('http://a.test', { createConnection: () => socket })
  client.on('error', () => client.destroy())
  const [served] = await once(listener, 'connection')
  t.after(() => {
    client.destroy()
    listener.close()
  })
  return performServerHandshake(served)
}

test('a session whose client answers questions is left alone', async (t) => {
  const session = await openSession(t)
  t.after(() => {
    session.destroy()
  })
  t.mock.timers.enable({ apis: ['setInterval'] })
  let isGone = false
  watchSession(session, () => (isGone = true))
  for (let n = 0; n < 30; n++) {
    t.mock.timers.tick(MINUTE_MS)
    await new Promise<void>((resolve) => session.ping(() => resolve()))
  }
  assert.equal(isGone, false)
})

test('a session that is over is ended, if its socket stays open for a minute', async (t) => {
  const session = await openSession(t)
  t.mock.timers.enable({ apis: ['setInterval'] })
  let isGone = false
  watchSession(session, () => (isGone = true))
  t.mock.timers.tick(MINUTE_MS)
  const { socket } = session
  t.mock.method(session, 'emit', () => false) // its socket never closes
  session.destroy()
  t.mock.timers.tick(MINUTE_MS)
  assert.equal(isGone, false)
  t.mock.timers.tick(MINUTE_MS)
  assert.equal(isGone, true)
  socket.destroy()
})
