import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { after, test, type TestContext } from 'node:test'
import { makeFairTurns } from '../../../src/lib/turns/fair-turns.ts'
import { makeConnectionMemory } from '../../../src/worker/egress/connection-memory.ts'
import { judgeSecrets, prepareSecrets } from '../../../src/worker/egress/placeholders/host-secrets.ts'
import { relay } from '../../../src/worker/egress/relay.ts'
import { makeSandboxTurn } from '../../../src/worker/egress/sandbox-turns.ts'
import { makeCertificate } from '../../support/certificates.ts'
import { isFree, openInterceptor, testSecret } from '../../support/intercept.ts'
import { waitUntil } from '../../support/wait.ts'

const KIB = 1024
const TOO_MUCH = /keep too much memory/
const CONNECTIONS = 20

const folder = mkdtempSync(join(tmpdir(), 'turns-'))
after(() => {
  rmSync(folder, { recursive: true })
})
const certificate = await makeCertificate(folder, ['api.test'])

test('the first piece of a sandbox begins at once, however many of another one wait', async () => {
  const turns = makeFairTurns({ budgetMs: 0, nowMs: () => 0 })
  const memoryOf = makeConnectionMemory(1_000 * KIB)
  const begun: string[] = []
  const work = async (sandbox: string): Promise<void> => {
    await makeSandboxTurn(turns, sandbox, memoryOf(sandbox))(() => KIB)
    begun.push(sandbox)
  }
  const noisy = Array.from({ length: 100 }, () => work('noisy'))
  await work('quiet')
  assert.deepEqual(begun, ['noisy', 'quiet'])
  await Promise.all(noisy)
  for (const sandbox of ['noisy', 'quiet']) assert.ok(isFree(memoryOf(sandbox), 1_000 * KIB))
})

test('what a connection reads while it waits counts, and is refused beyond the bound of its sandbox', async () => {
  const memory = makeConnectionMemory(8 * KIB)('noisy')
  let keptBytes = 4 * KIB
  const turn = makeSandboxTurn({ next: () => new Promise(() => undefined) }, 'noisy', memory)
  const waiting = turn(() => keptBytes)
  await nextTurn()
  assert.ok(!isFree(memory, 5 * KIB) && isFree(memory, 4 * KIB))
  keptBytes = 9 * KIB
  await assert.rejects(waiting, TOO_MUCH)
  assert.ok(isFree(memory, 8 * KIB))
})

test(
  'requests that arrive together on many connections of a sandbox are judged in turns of their own',
  { timeout: 60_000 },
  async (t) => {
    const upstreamPort = await listen(t, createServer())
    let turn = 0
    const judged: number[] = []
    const { port } = await openInterceptor(t, {
      upstreamPort,
      caFile: certificate.caFile,
      secrets: [],
      isPlain: true,
      allowsHost: () => judged.push(turn) > 0,
    })
    const clients = await openClients(t, port, CONNECTIONS)
    const get = (host: string): string => `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`
    const judge = async (host: string): Promise<readonly number[]> => {
      judged.length = 0
      for (const client of clients) client.write(get(host))
      while (judged.length < CONNECTIONS) {
        await nextTurn()
        turn += 1
      }
      return judged
    }
    await judge('one.test')
    const turns = await judge('other.test')
    assert.ok(new Set(turns).size > CONNECTIONS / 2, String(turns))
  },
)

test('other bytes wait for a turn before they are searched, and their connection ends if too much waits', async (t) => {
  const upstreamPort = await listen(t, createServer())
  const memory = makeConnectionMemory(32 * KIB)('noisy')
  const turn = makeSandboxTurn({ next: () => new Promise(() => undefined) }, 'noisy', memory)
  const host = { host: 'other.test', tiedNames: [], isVerified: false }
  const secrets = judgeSecrets(prepareSecrets([testSecret()]), host)
  const reasons: string[] = []
  const relaying = createServer({ allowHalfOpen: true }, (client) => {
    const server = connect({ port: upstreamPort, host: '127.0.0.1', allowHalfOpen: true })
    for (const socket of [client, server]) socket.on('error', () => socket.destroy())
    relay(client, server, { secrets, memory, turn, onRefused: ({ message }) => reasons.push(message) })
  })
  const [client] = await openClients(t, await listen(t, relaying), 1)
  client?.write(Buffer.alloc(KIB))
  await waitUntil(() => !isFree(memory, 32 * KIB))
  assert.deepEqual(reasons, [])
  client?.write(Buffer.alloc(40 * KIB))
  await waitUntil(() => reasons.length > 0)
  assert.match(reasons.join(), TOO_MUCH)
  await waitUntil(() => isFree(memory, 32 * KIB))
})

async function listen(t: TestContext, server: Server): Promise<number> {
  server.on('connection', (socket) => socket.on('error', () => socket.destroy()))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => server.close())
  return (server.address() as AddressInfo).port
}

async function openClients(t: TestContext, port: number, count: number): Promise<readonly Socket[]> {
  const clients = Array.from({ length: count }, () => connect(port, '127.0.0.1'))
  for (const client of clients) {
    client.on('error', () => client.destroy())
    t.after(() => client.destroy())
  }
  await Promise.all(clients.map((client) => once(client, 'connect')))
  return clients
}
