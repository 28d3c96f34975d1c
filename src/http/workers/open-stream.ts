import { createWebSocketStream, type WebSocket } from 'ws'
import type { StreamPurpose } from '../../contract/workers/worker-protocol.ts'
import type { WorkerStreams } from '../../control/streams/open-worker-stream.ts'
import { pingEvery } from '../../lib/streams/web-socket-flow.ts'
import type { Relay } from '../../relay/relay.ts'

/** How often a worker is pinged that does a task about a snapshot, in milliseconds. */
const PING_MS = 20_000

/**
 * Makes the function that opens streams to workers. A worker that does a task about a snapshot may say nothing for
 * minutes. If it answers no ping meanwhile, its process hangs, and the stream is ended.
 */
export function makeOpenStream(
  relay: Pick<Relay<StreamPurpose, WebSocket>, 'open'>,
  pingMs = PING_MS,
): WorkerStreams['openStream'] {
  return async ({ worker_id, purpose }, signal) => {
    const socket = await relay.open(worker_id, purpose, signal)
    if (socket === null) return null
    if (purpose.kind === 'snapshot') {
      pingEvery(socket, pingMs, () => {
        socket.terminate()
      })
    }
    return createWebSocketStream(socket)
  }
}
