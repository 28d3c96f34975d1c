import type { Http2Session } from 'node:http2'
import type { Socket } from 'node:net'

/** How often the other side of a connection is asked whether it is still there. */
const INTERVAL_MS = 60_000

/**
 * Notices that the other side is gone, also while nothing is read: Node then says nothing of a reset, and a connection whose bytes the
 * next side doesn't take would stay open. An empty write fails after a reset, and sends nothing otherwise.
 */
export function watchPeer(socket: Socket): void {
  socket.setKeepAlive(true, INTERVAL_MS)
  const timer = setInterval(() => {
    if (socket.writable && socket.writableLength === 0) socket.write('')
  }, INTERVAL_MS)
  socket.once('close', () => {
    clearInterval(timer)
  })
}

/**
 * As `watchPeer`, for a session, which writes to its socket by itself. Calls `onGone` if the other side has left ten questions
 * unanswered: more may not wait. Also if the session is over and its socket has not closed within a minute: the other side doesn't
 * take the end.
 */
export function watchSession(session: Http2Session, onGone: () => void): void {
  let isOver = false
  const timer = setInterval(() => {
    if (isOver || (!session.destroyed && !session.ping(() => undefined))) onGone()
    isOver = session.destroyed
  }, INTERVAL_MS)
  session.once('close', () => {
    clearInterval(timer)
  })
}
