import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { test, type TestContext } from 'node:test'
import { CONNECTION_MEMORY_BYTES, makeConnectionMemory } from '../../../src/worker/egress/connection-memory.ts'
import { dial } from '../../../src/worker/egress/dial.ts'
import { relay } from '../../../src/worker/egress/relay.ts'
import { isFree } from '../../support/intercept.ts'
import { waitUntil } from '../../support/wait.ts'

const PIECE = Buffer.alloc(65_536, 'x')

test('no connection to a server is opened for a client that left before', async (t) => {
  const connections: Socket[] = []
  const server = createServer((socket) => connections.push(socket))
  const port = await listen(t, server)
  const client = connect(port, '127.0.0.1')
  await once(client, 'connect')
  client.destroy()
  await once(client, 'close')
  await waitUntil(() => connections.length === 1)
  await assert.rejects(dial({ address: '127.0.0.1', port, from: '127.0.0.1', client }), /the client left/)
  assert.equal(connections.length, 1)
})

test('a client that is reset while its server reads nothing is noticed, and releases what it keeps', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const memory = makeConnectionMemory(CONNECTION_MEMORY_BYTES)('')
  const silent = createServer({ pauseOnConnect: true })
  const serverPort = await listen(t, silent)
  let isClosed = false
  const relaying = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (client) => {
    client.on('error', () => client.destroy()).on('close', () => (isClosed = true))
    const server = connect({ port: serverPort, host: '127.0.0.1', allowHalfOpen: true })
    server.on('error', () => server.destroy())
    relay(client, server, { secrets: null, memory, turn: () => Promise.resolve(), onRefused: assert.fail })
  })
  const client = connect(await listen(t, relaying), '127.0.0.1')
  await once(client, 'connect')
  const write = (): void => {
    while (client.write(PIECE));
  }
  client.on('drain', write)
  write()
  await waitUntil(() => !isFree(memory, CONNECTION_MEMORY_BYTES))
  client.off('drain', write)
  client.resetAndDestroy()
  await waitUntil(() => {
    t.mock.timers.tick(60_000)
    return isClosed
  })
  assert.ok(isFree(memory, CONNECTION_MEMORY_BYTES))
})

async function listen(t: TestContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket: Socket) => sockets.add(socket))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return (server.address() as AddressInfo).port
}
