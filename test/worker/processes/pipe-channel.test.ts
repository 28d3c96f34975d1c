import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { test, type TestContext } from 'node:test'
import { WebSocket, WebSocketServer } from 'ws'
import { encodeData, encodeMessage } from '../../../src/channel/envelope.ts'
import { CHANNEL_ENDS } from '../../../src/contract/sandboxes/channel-ends.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makePiecePacer } from '../../../src/lib/turns/piece-pacer.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { makeReadBuffers } from '../../../src/lib/streams/read-buffers.ts'
import { closeWebSocket } from '../../../src/lib/streams/web-socket-flow.ts'
import { makeSplittingAgent } from '../../../src/worker/agent/splitting-agent.ts'
import { openChannel } from '../../../src/worker/channel/open-channel.ts'
import { makeNoLogs } from '../../../src/worker/logs/logs.ts'
import { pipeChannel } from '../../../src/worker/processes/pipe-channel.ts'
import { isAlive, makeLocalGuest } from '../../support/local-guest.ts'
import { waitUntil } from '../../support/wait.ts'

// A client leaves while its process doesn't read its input. The worker's connection is paused, so it can't read that.

const MIB = 1024 * 1024
const PING_MS = 100

/** The control plane's end of a channel over loopback, and the process of a client on it that reads no input. */
async function startUnread(t: TestContext) {
  const server = createServer()
  const sockets = new WebSocketServer({ server, perMessageDeflate: false })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  assert.ok(address !== null && typeof address === 'object')
  const accepted = once(sockets, 'connection')
  const worker = new WebSocket(`ws://127.0.0.1:${String(address.port)}`, {
    perMessageDeflate: false,
    agent: makeSplittingAgent(makeReadBuffers()),
  })
  await once(worker, 'open')
  worker.pause()
  const [control] = (await accepted) as [WebSocket]
  control.on('error', () => control.terminate())
  t.after(() => {
    for (const socket of [control, worker]) socket.terminate()
    server.close()
  })
  const guest = makeLocalGuest()
  let pid = 0
  t.after(() => {
    if (pid > 0 && isAlive(pid)) process.kill(pid, 'SIGKILL')
  })
  const noting: typeof guest = {
    ...guest,
    async exec(request) {
      const sleeping = await guest.exec(request)
      pid = sleeping.pid
      return sleeping
    },
  }
  let isInUse = false
  const channel = openChannel(noting, {
    clock: systemClock,
    log: makeLog('silent'),
    limits: { sessions: 256 },
    pace: makePiecePacer().paceOf('org'),
    agentVersion: 'test',
    onActivity: () => undefined,
    onProcess() {
      isInUse = true
      return () => {
        isInUse = false
      }
    },
    capture: makeNoLogs().writerOf(asId<SandboxId>('box')),
  })
  const over = pipeChannel(worker, channel, { signal: new AbortController().signal, pingMs: PING_MS })
  const request = { cmd: 'sleep', args: ['600'], env: [], cwd: '/', user: null, tty: false, rows: 24, cols: 80, rlimits: [] } // prettier-ignore
  control.send(encodeMessage(1, 'core.exec.request', request))
  await waitUntil(() => pid > 0)
  for (let n = 0; n < 64; n++) control.send(Buffer.concat([...encodeData(1, 'core.exec.stdin', Buffer.alloc(MIB))]))
  await waitUntil(() => worker.isPaused && control.bufferedAmount > MIB)
  return { control, worker, over, pid, isInUse: () => isInUse }
}

for (const [how, leave] of [
  ['closes', (control: WebSocket): void => closeWebSocket(control, CHANNEL_ENDS.client_done)],
  ['is cut', (control: WebSocket): void => control.terminate()],
] as const) {
  test(`a process that reads no input ends when its channel ${how}, and its sandbox is no longer in use`, async (t) => {
    const { control, over, pid, isInUse } = await startUnread(t)
    assert.ok(isInUse())
    leave(control)
    await waitUntil(() => !isAlive(pid) && !isInUse())
    await over
  })
}

test('a control plane that answers no ping keeps its channel', async (t) => {
  const { control, worker, over, pid } = await startUnread(t)
  control.pause() // as a slow client makes it
  const pings = t.mock.method(worker, 'ping').mock
  await waitUntil(() => pings.callCount() >= 5)
  assert.deepEqual([worker.readyState, isAlive(pid)], [worker.OPEN, true])
  control.terminate()
  await over
})
