import { once } from 'node:events'
import { readdir } from 'node:fs/promises'
import { connect, createServer, type Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { resetSocket } from '../../src/lib/reset-socket.ts'
import { waitUntil } from '../support/wait.ts'

const LIMIT_MS = 10_000

describe('a socket that is reset', () => {
  const server = createServer((client) => client.on('error', () => undefined).resume())
  before(async () => {
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
  })
  after(() => server.close())

  test('is closed, also while its end is being sent', async () => {
    const before = await descriptors()
    for (const text of ['', 'words']) {
      const socket = await open()
      socket.end(text)
      await new Promise<void>((resolve) => {
        process.nextTick(resolve) // the end is being sent from here on
      })
      resetSocket(socket)
      await closed(socket)
    }
    await waitUntil(async () => (await descriptors()) <= before, LIMIT_MS)
  })

  test('is closed before and after its end, and may be reset again', async () => {
    const [early, late] = [await open(), await open()]
    late.end()
    await once(late, 'finish')
    for (const socket of [early, late]) {
      resetSocket(socket)
      resetSocket(socket)
      await closed(socket)
    }
  })

  async function open(): Promise<Socket> {
    const address = server.address()
    const port = typeof address === 'object' ? (address?.port ?? 0) : 0
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true }).on('error', () => undefined)
    await once(socket, 'connect')
    return socket
  }

  async function descriptors(): Promise<number> {
    return (await readdir('/proc/self/fd')).length
  }

  async function closed(socket: Socket): Promise<void> {
    if (!socket.closed) await once(socket, 'close', { signal: AbortSignal.timeout(LIMIT_MS) })
  }
})
