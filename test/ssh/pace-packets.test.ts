import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import ssh2 from 'ssh2'
import type { PacedReads } from '../../src/lib/streams/pace-reads.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { countPackets, pacePackets } from '../../src/ssh/pace-packets.ts'
import { makeHostKey } from '../../src/ssh/server.ts'
import { countPerTurn } from '../support/most-per-turn.ts'
import { waitUntil } from '../support/wait.ts'

const CIPHERS: readonly ssh2.CipherAlgorithm[] = [
  'aes128-gcm@openssh.com',
  'chacha20-poly1305@openssh.com',
  'aes256-ctr',
]

/** An SSH server that lets everybody in, and the packets that it counted. */
async function serve(t: TestContext) {
  const pacer = makePiecePacer(0)
  const perTurn = countPerTurn()
  const counts: number[] = []
  const protocol = new ssh2.Server({ hostKeys: [makeHostKey().private] })
  const listener = createServer((socket) => {
    const pace = pacer.paceOf('address')
    const count = (packets = 1): boolean => {
      counts.push(packets)
      perTurn.count(packets)
      return pace.count(packets)
    }
    const reads: PacedReads = pacePackets(socket, { ...pace, count })
    protocol.once('connection', (connection) => {
      countPackets(connection, socket, reads)
      connection.on('authentication', (context) => context.accept())
      connection.on('error', () => undefined)
    })
    protocol.injectSocket(socket)
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  t.after(() => listener.close())
  const connect = async (cipher: ssh2.CipherAlgorithm): Promise<ssh2.Client> => {
    const client = new ssh2.Client()
    client.on('error', () => undefined)
    t.after(() => client.destroy())
    const { port } = listener.address() as AddressInfo
    const algorithms = { cipher: [cipher] }
    client.connect({ host: '127.0.0.1', port, username: 'anybody', password: 'x', algorithms })
    await once(client, 'ready')
    return client
  }
  return { connect, counts, perTurn }
}

/** Sends so many requests that ask for a reply, in one write. Resolves when all are answered. */
async function ping(client: ssh2.Client, times: number): Promise<void> {
  const protocol: { readonly ping: () => void } = Reflect.get(client, '_protocol')
  const socket: { readonly cork: () => void; readonly uncork: () => void } = Reflect.get(client, '_sock')
  let answers = 0
  const handlers: Record<string, () => void> = Reflect.get(protocol, '_handlers')
  handlers['REQUEST_FAILURE'] = () => void (answers += 1)
  socket.cork()
  for (let n = 0; n < times; n++) protocol.ping()
  socket.uncork()
  await waitUntil(() => answers === times)
}

test('many small packets are handled in several turns, whatever the cipher, and all are answered', async (t) => {
  for (const cipher of CIPHERS) {
    const { connect, perTurn, counts } = await serve(t)
    const client = await connect(cipher)
    await ping(client, 1_500)
    const counted = counts.reduce((sum, packets) => sum + packets, 0)
    assert.ok(counted >= 8 * 1_500, `${cipher}: ${String(counted)} pieces were counted`)
    assert.ok(perTurn.most() <= 256 + 8 * 114, `${cipher}: ${String(perTurn.most())} pieces in a turn`)
  }
})

test('the packets of a key exchange count for many', async (t) => {
  const { connect, counts } = await serve(t)
  await connect('aes128-gcm@openssh.com')
  const first = counts.filter((packets) => packets >= 64)
  assert.ok(first.length > 0)
  assert.ok(first.reduce((sum, packets) => sum + packets, 0) >= 2 * 64, counts.join())
})
