/** Byte streams over WebSockets: backpressure, pings, and a close within a fixed time. */
import type { RawData, WebSocket } from 'ws'
import type { Pace } from '../turns/piece-pacer.ts'
import { paceReads } from './pace-reads.ts'

/**
 * A source pauses while more than this is unsent, and resumes below a quarter of it. A message of a byte takes some 600 bytes of memory,
 * so messages count as well.
 */
const MAX_UNSENT = { bytes: 1024 * 1024, messages: 1024 }

/** How long a peer may take to answer a close, or to read more of the data before the close, in milliseconds. */
const CLOSE_TIMEOUT_MS = 1_000

/** Makes a function that sends binary messages of `source`, which is paused while the receiver is slow. */
export function makePacedSender(
  to: Pick<WebSocket, 'bufferedAmount' | 'send'>,
  source: { readonly pause: () => unknown; readonly resume: () => unknown },
): (message: Buffer) => void {
  let messages = 0
  let isPaused = false
  const isAbove = (share: number): boolean =>
    to.bufferedAmount > share * MAX_UNSENT.bytes || messages > share * MAX_UNSENT.messages
  const onSent = (): void => {
    messages -= 1
    if (!isPaused || isAbove(1 / 4)) return
    isPaused = false
    source.resume()
  }
  return (message) => {
    messages += 1
    to.send(message, { binary: true }, onSent)
    if (isPaused || !isAbove(1)) return
    isPaused = true
    source.pause()
  }
}

/**
 * Forwards messages from one WebSocket to another, at the receiver's pace. Drops messages that arrive once the receiver
 * is closing, and messages for which `take` returns false.
 */
export function forwardMessages(
  from: WebSocket,
  to: WebSocket,
  take: (isBinary: boolean) => boolean = () => true,
): void {
  const send = makePacedSender(to, from)
  from.on('message', (data, isBinary) => {
    if (take(isBinary) && to.readyState === to.OPEN) send(messageBytes(data))
  })
  to.once('close', () => {
    from.resume() // otherwise its close frame is never read
  })
}

/** Such a part has up to 4,096 messages of a byte. */
const PART_MAX_BYTES = 16 * 1024

/** Reads the messages of a client's WebSocket at a pace. Call it before the server has answered. */
export function paceMessages(socket: WebSocket, pace: Pace): void {
  socket.once('upgrade', ({ socket: connection }) => {
    const reads = paceReads(connection, { pace, partMaxBytes: PART_MAX_BYTES })
    connection.unshift = reads.begin // the library puts back what arrived with the answer
    socket.on('message', () => {
      reads.count()
    })
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
