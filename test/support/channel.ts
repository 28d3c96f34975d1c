import { once } from 'node:events'
import { createServer } from 'node:http'
import type { Duplex } from 'node:stream'
import { WebSocket, WebSocketServer } from 'ws'
import type { OpenChannel } from '../../src/control/streams/open-channel.ts'
import { pipeChannel } from '../../src/worker/processes/pipe-channel.ts'

/** Opens a WebSocket over loopback. Resolves with the control plane's end, which is paused, and the worker's end. */
export async function socketPair(): Promise<readonly [WebSocket, WebSocket]> {
  const server = createServer()
  const sockets = new WebSocketServer({ server, perMessageDeflate: false })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('a server of this test has no port')
  const accepted = Promise.withResolvers<WebSocket>()
  sockets.once('connection', (socket) => {
    socket.pause()
    server.close() // open connections stay
    accepted.resolve(socket)
  })
  const theirs = new WebSocket(`ws://127.0.0.1:${String(address.port)}`, { perMessageDeflate: false })
  await once(theirs, 'open')
  theirs.pause()
  const ours = await accepted.promise
  for (const socket of [ours, theirs]) socket.on('error', () => socket.terminate())
  return [ours, theirs]
}

/**
 * Opens a channel that a worker serves over a stream. `end` aborts the channel from outside, `worker` ends the worker.
 */
export async function openChannelOver(
  stream: Duplex,
  signals: { readonly end?: AbortSignal; readonly worker?: AbortSignal } = {},
): Promise<OpenChannel> {
  const never = new AbortController().signal
  const [ours, theirs] = await socketPair()
  const serving = pipeChannel(theirs, stream, { signal: signals.worker ?? never })
  serving.catch((error: unknown) => {
    stream.destroy(error instanceof Error ? error : new Error('a channel of a test failed'))
  })
  return { socket: ours, signal: signals.end ?? never, close: () => ours.terminate() }
}
