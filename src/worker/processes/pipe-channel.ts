import type { Duplex } from 'node:stream'
import type { WebSocket } from 'ws'
import { CHANNEL_ENDS } from '../../contract/sandboxes/channel-ends.ts'
import { closeWebSocket, makePacedSender, messageBytes, pingEvery } from '../../lib/streams/web-socket-flow.ts'

/**
 * How often the other side of the WebSocket is pinged, in milliseconds. While a process does not read its input, the WebSocket is
 * paused, so neither its end nor its loss is read. The second ping to a side that has closed fails.
 */
const PING_MS = 15_000

/**
 * Forwards bytes between a WebSocket and a run's channel until either side ends or the signal aborts, then ends the
 * other side. Resolves when both are closed. A slow side slows the other down. The WebSocket's close code reports how
 * the channel ended. If the channel was destroyed with neither an end nor an error, the client had sent an invalid
 * frame.
 */
export async function pipeChannel(
  socket: WebSocket,
  channel: Duplex,
  { signal, pingMs = PING_MS }: { readonly signal: AbortSignal; readonly pingMs?: number },
): Promise<void> {
  const { promise: closed, resolve } = Promise.withResolvers<void>()
  const onAbort = (): void => {
    closeWebSocket(socket, CHANNEL_ENDS.worker_closing)
  }
  const onClosed = (): void => {
    if (socket.readyState === socket.CLOSED && channel.closed) resolve()
  }
  socket.on('error', () => {
    socket.terminate() // the event `close` follows
  })
  socket.once('close', () => {
    channel.destroy()
    onClosed()
  })
  channel.on('error', () => {
    closeWebSocket(socket, CHANNEL_ENDS.channel_failed)
  })
  channel.once('end', () => {
    closeWebSocket(socket, CHANNEL_ENDS.agent_done)
  })
  channel.once('close', () => {
    closeWebSocket(socket, CHANNEL_ENDS.client_broke_framing)
    onClosed()
  })
  signal.addEventListener('abort', onAbort, { once: true })
  if (signal.aborted) onAbort()
  if (socket.readyState === socket.CLOSED) channel.destroy()
  if (channel.destroyed) closeWebSocket(socket, CHANNEL_ENDS.channel_failed)
  toChannel(socket, channel)
  toSocket(socket, channel)
  pingEvery(socket, pingMs, () => {
    // A slow client stops the other side, which then answers no ping.
  })
  onClosed()
  await closed
  signal.removeEventListener('abort', onAbort)
}

function toChannel(socket: WebSocket, channel: Duplex): void {
  socket.on('message', (data) => {
    if (channel.writable && !channel.write(messageBytes(data))) socket.pause()
  })
  channel.on('drain', () => {
    if (socket.isPaused) socket.resume()
  })
  socket.resume()
}

function toSocket(socket: WebSocket, channel: Duplex): void {
  const send = makePacedSender(socket, channel)
  channel.on('data', (piece: Buffer) => {
    if (socket.readyState === socket.OPEN) send(piece)
  })
}
