/** What both ends of a stream of bytes over WebSockets share: pace, pings, and an end within a set time. */
import type { RawData, WebSocket } from 'ws'

/** Above so many unsent bytes the source is paused; below the lower mark it flows again. */
export const HIGH_WATER_BYTES = 1024 * 1024
export const LOW_WATER_BYTES = 256 * 1024

/** How long a WebSocket may take to answer a goodbye, or to take more of what is before it, in milliseconds. */
const CLOSE_TIMEOUT_MS = 1_000

/**
 * Gives on what one WebSocket receives to another, message by message, as fast as the other takes it. Messages that
 * arrive once the other is closing are dropped. `take` may refuse a message, by answering false.
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
    from.resume() // or its own close is never read
  })
}

/** The bytes of a message. */
export function messageBytes(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}

/**
 * Says goodbye behind what is still unsent, and cuts the connection when the peer neither takes more nor answers in time;
 * the library does after 30 s whatever it takes. May be repeated.
 */
export function closeWebSocket(
  socket: WebSocket,
  { code, reason }: { readonly code: number; readonly reason: string },
): void {
  if (socket.readyState === socket.CLOSED) return
  socket.close(code, reason)
  socket.resume() // the answer must be read
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
 * Pings while a WebSocket is open, and calls `onSilent` when a whole period went by without an answer. Whoever we don't
 * read or who does not read us can't answer, and is not silent for that; what is written to it tells when it has gone.
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
