import assert from 'node:assert/strict'
import { connect, createServer } from 'node:net'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startFaultProxy } from '../support/fault-proxy.ts'

test('bytes keep their order when the proxy’s delay becomes shorter, and the end comes last', async () => {
  const listener = createServer({ noDelay: true, allowHalfOpen: true }, (socket) => {
    void text(socket).then((said) => socket.end(`heard ${said}`))
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const address = listener.address()
  assert.ok(address !== null && typeof address === 'object')
  const proxy = await startFaultProxy(address.port)
  try {
    const client = connect({ port: proxy.port, host: '127.0.0.1', noDelay: true, allowHalfOpen: true })
    await once(client, 'connect')
    for (const delayMs of [150, 80, 0]) {
      proxy.setDelay(delayMs)
      client.write(`${String(delayMs)} `)
      await sleep(20) // so that the proxy reads each apart
    }
    client.end('end')
    assert.equal(await text(client), 'heard 150 80 0 end')
  } finally {
    await proxy.close()
    listener.close()
  }
})
