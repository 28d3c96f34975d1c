import assert from 'node:assert/strict'
import { createServer, type RequestListener, type Server } from 'node:http'
import { afterEach, test } from 'node:test'
import { WebSocketServer } from 'ws'
import type { SyncAnswer } from '../../../src/contract/workers/worker-protocol.ts'
import { asId, type WorkerId } from '../../../src/domain/ids.ts'
import { RENEW_DEADLINE_MS } from '../../../src/domain/workers/lease.ts'
import { makeControlPlane, syncTimeLimits } from '../../../src/worker/agent/control-plane.ts'
import { SYNC_RETRY_MS } from '../../../src/worker/agent/sync-loop.ts'
import { EMPTY_ANSWER, reportOf } from '../../support/report.ts'
import { waitUntil } from '../../support/wait.ts'

const never = new AbortController().signal
const servers: Server[] = []
afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
})

/** A fake server process that counts the syncs of a worker. */
type Peer = { readonly url: string; readonly server: Server; readonly syncs: number }

async function listen(answer: RequestListener): Promise<Peer> {
  let syncs = 0
  const server = createServer((request, response) => {
    syncs += 1
    answer(request, response)
  })
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  return {
    url: `http://127.0.0.1:${String(port)}`,
    server,
    get syncs() {
      return syncs
    },
  }
}

const REPORT = reportOf(asId<WorkerId>('01890a5d-ac96-774b-bcce-b302099a8057'))

function answerWith(replicas: readonly string[]): string {
  return JSON.stringify({ ...EMPTY_ANSWER, desired_version: 'v', replicas } satisfies SyncAnswer)
}

test('the head of an answer reports that the report was recorded, even while the body is held', async () => {
  let end: () => void = () => undefined
  const peer = await listen((_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' })
    response.write(' ')
    end = () => response.end(answerWith([]))
  })
  const controlPlane = makeControlPlane({ url: peer.url, credential: 'c' })
  let isTaken = false
  const answering = controlPlane.sync(REPORT, never, () => {
    isTaken = true
    return Promise.resolve()
  })
  await waitUntil(() => isTaken)
  end()
  assert.equal((await answering).desired_version, 'v')
})

test('a worker syncs with the next process when one refuses, disconnects or does not answer, well before its renew deadline', async () => {
  const second = await listen((_request, response) => {
    response.end(answerWith([first.url, second.url]))
  })
  let mood: 'well' | 'unready' | 'silent' = 'well'
  const first: Peer = await listen((_request, response) => {
    if (mood === 'well') response.end(answerWith([first.url, second.url]))
    else if (mood === 'unready') response.writeHead(503).end('{}')
  })
  const refused = makeControlPlane({ url: first.url, credential: 'c' })
  const stuck = makeControlPlane({ url: first.url, credential: 'c' })
  for (const one of [refused, stuck]) await one.sync(REPORT, never)
  assert.deepEqual(refused.urls?.(), [first.url, second.url])
  assert.equal(second.syncs, 0)
  mood = 'unready'
  await assert.rejects(refused.sync(REPORT, never), /503/)
  await refused.sync(REPORT, never)
  assert.equal(second.syncs, 1)
  mood = 'silent'
  await assert.rejects(stuck.sync(REPORT, never), /did not answer for 4000 ms/)
  await stuck.sync(REPORT, never)
  assert.equal(second.syncs, 2)
  second.server.closeAllConnections()
  second.server.close()
  mood = 'well'
  await assert.rejects(stuck.sync(REPORT, never))
  await stuck.sync(REPORT, never)
})

test('two server processes that stop, one of them while it holds a sync, are given up before the renew deadline', () => {
  const answerMs = 2_000
  const [held, silent] = [syncTimeLimits(2).limitMs, syncTimeLimits(1).statusLimitMs]
  assert.ok(held + SYNC_RETRY_MS + silent + SYNC_RETRY_MS + answerMs < RENEW_DEADLINE_MS)
  assert.ok(syncTimeLimits(0).limitMs < RENEW_DEADLINE_MS)
})

test('a sync that the worker itself aborts is no failure of the process', async () => {
  const other = await listen((_request, response) => response.end(answerWith([])))
  let isHeld = false
  const first: Peer = await listen((_request, response) => {
    if (!isHeld) response.end(answerWith([first.url, other.url]))
  })
  const controlPlane = makeControlPlane({ url: first.url, credential: 'c' })
  await controlPlane.sync(REPORT, never)
  isHeld = true
  const giving = new AbortController()
  const given = controlPlane.sync(REPORT, giving.signal)
  await waitUntil(() => first.syncs === 2)
  giving.abort(new Error('a later sync was answered'))
  await assert.rejects(given)
  isHeld = false
  await controlPlane.sync(REPORT, never)
  assert.deepEqual([first.syncs, other.syncs], [3, 0])
})

test('a worker connects with a ticket at its URL, and if nothing answers there, at the URL of its syncs', async () => {
  const paths: string[] = []
  const takesTickets = (peer: Peer, name: string): void => {
    const sockets = new WebSocketServer({ noServer: true })
    peer.server.on('upgrade', (request, socket, head) => {
      paths.push(`${name} ${String(request.url)} ${String(request.headers.authorization)}`)
      sockets.handleUpgrade(request, socket, head, () => undefined)
    })
  }
  const [home, waits] = [await listen(() => undefined), await listen(() => undefined)]
  takesTickets(home, 'home')
  takesTickets(waits, 'waits')
  const controlPlane = makeControlPlane({ url: home.url, credential: 'c' })
  const dead = 'http://127.0.0.1:1'
  for (const url of [waits.url, undefined, dead]) {
    const socket = await controlPlane.dial({ ticket: 't', url }, never)
    socket.terminate()
  }
  const path = '/worker/v1/streams/t Bearer c'
  assert.deepEqual(paths, [`waits ${path}`, `home ${path}`, `home ${path}`])
})

test('the credential is sent only to URLs that a worker may accept', async () => {
  const heard: string[] = []
  const stranger = await listen((request, response) => {
    heard.push(String(request.url))
    response.end(answerWith([]))
  })
  stranger.server.on('upgrade', (request, socket) => {
    heard.push(String(request.headers.authorization))
    socket.destroy()
  })
  const overTls = makeControlPlane({ url: 'https://127.0.0.1:1', credential: 'c' })
  await assert.rejects(overTls.dial({ ticket: 't', url: stranger.url }, never))
  const moved = await listen((_request, response) => {
    response.writeHead(307, { location: `${stranger.url}/worker/v1/sync` }).end()
  })
  await assert.rejects(makeControlPlane({ url: moved.url, credential: 'c' }).sync(REPORT, never))
  assert.deepEqual(heard, [])
})
