import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { test, type TestContext } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { askWorker } from '../../../src/control/streams/ask-worker.ts'
import { asId, type SandboxId, type SnapshotId, type WorkerId } from '../../../src/domain/ids.ts'
import { makeOpenStream } from '../../../src/http/workers/open-stream.ts'
import { waitUntil } from '../../support/wait.ts'

const task = { do: 'take', snapshot_id: asId<SnapshotId>('1'), sandbox_id: asId<SandboxId>('2'), records_integrity: false } as const // prettier-ignore
const target = { worker_id: asId<WorkerId>('3'), purpose: { kind: 'snapshot', task } } as const
const how = { signal: new AbortController().signal, limitBytes: 1_000 }

/** A WebSocket, and its other end, which is the worker's. */
async function connect(
  t: TestContext,
  autoPong: boolean,
): Promise<{ readonly socket: WebSocket; readonly worker: WebSocket }> {
  const http = createServer().listen(0, '127.0.0.1')
  const sockets = new WebSocketServer({ server: http })
  await once(http, 'listening')
  const { port } = Object(http.address())
  const worker = new WebSocket(`ws://127.0.0.1:${String(port)}`, { autoPong })
  t.after(() => {
    worker.terminate()
    sockets.close()
    http.close()
  })
  const [socket] = await once(sockets, 'connection')
  return { socket, worker }
}

test('the wait for a snapshot ends if its worker answers no ping, though its connection stays open', async (t) => {
  const { socket, worker } = await connect(t, false)
  const openStream = makeOpenStream({ open: () => Promise.resolve(socket) }, 50)
  const refused = assert.rejects(askWorker({ openStream }, target, how), /the worker did not answer/)
  await waitUntil(() => worker.readyState === worker.CLOSED)
  await refused
})

test('a worker that answers pings may take its time for a snapshot', async (t) => {
  const { socket, worker } = await connect(t, true)
  const openStream = makeOpenStream({ open: () => Promise.resolve(socket) }, 500)
  const answer = askWorker({ openStream }, target, how)
  for (let pings = 0; pings < 3; pings += 1) await once(worker, 'ping')
  worker.send('{"taken":null}')
  worker.close()
  assert.deepEqual(await answer, { taken: null })
})
