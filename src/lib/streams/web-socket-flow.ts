/** Byte streams over WebSockets: backpressure, pings, and a close within a fixed time. */
import type { RawData, WebSocket } from 'ws'

/** The source pauses above `HIGH_WATER_BYTES` unsent bytes and resumes below `LOW_WATER_BYTES`. */
export const HIGH_WATER_BYTES = 1024 * 1024
export const LOW_WATER_BYTES = 256 * 1024

/** How long a peer may take to answer a close, or to read more of the data before the close, in milliseconds. */
const CLOSE_TIMEOUT_MS = 1_000

/**
 * Forwards messages from one WebSocket to another, at the receiver's pace. Drops messages that arrive once the receiver
 * is closing, and messages for which `take` returns false.
 */
export function forwardMessages(
  from: WebSocket,
  to: WebSocket,
  take: (isBinary: boolean) => boolean = () => true,
): void {
  const onSent = (): void => {
    if (from.isPaused && to.bufferedAmount < LOW_WATER_BYTES) from.resume()
  }
  from.on('message', (data, isBinary) => {
    if (!take(isBinary) || to.readyState !== to.OPEN) return
    to.send(messageBytes(data), { binary: true }, onSent)
    if (to.bufferedAmount > HIGH_WATER_BYTES) from.pause()
  })
  to.once('close', () => {
    from.resume() // otherwise its close frame is never read
  })
}

/** The bytes of a message as one buffer. */
export function messageBytes(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}

/**
 * Closes a WebSocket once all queued data is sent. If the peer neither reads more data nor answers the close within
 * `CLOSE_TIMEOUT_MS`, the connection is cut. The library itself would wait 30 s. May be repeated.
 */
export function closeWebSocket(
  socket: WebSocket,
  { code, reason }: { readonly code: number; readonly reason: string },
): void {
  if (socket.readyState === socket.CLOSED) return
  socket.close(code, reason)
  socket.resume() // the peer's answer must be read
  let unsent = socket.bufferedAmount
  const late = setInterval(() => {
    if (socket.bufferedAmount === 0 || socket.bufferedAmount >= unsent) socket.terminate()
    unsent = socket.bufferedAmount
  }, CLOSE_TIMEOUT_MS)
  socket.once('close', () => {
    clearInterval(late)
  })
}

/**
 * Pings an open WebSocket every `pingMs` and calls `onSilent` when a ping is not answered before the next ping. While
 * this socket is paused or has unsent data, a missing answer does not count. Failing writes show then that the peer is
 * gone.
 */
export function pingEvery(socket: WebSocket, pingMs: number, onSilent: () => void): void {
  let isAlive = true
  socket.on('pong', () => {
    isAlive = true
  })
  const timer = setInterval(() => {
    if (socket.readyState !== socket.OPEN) return
    const canAnswer = !socket.isPaused && socket.bufferedAmount === 0
    if (canAnswer && !isAlive) {
      onSilent()
      return
    }
    isAlive = !canAnswer
    if (socket.bufferedAmount === 0) socket.ping()
  }, pingMs)
  socket.once('close', () => {
    clearInterval(timer)
  })
}
