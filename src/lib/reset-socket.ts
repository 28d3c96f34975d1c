import type { Socket } from 'node:net'

/**
 * Resets a TCP connection, or closes it while its end is being sent. libuv refuses to reset a socket in that moment, and Node then
 * neither closes the socket nor says so: its descriptor stays open, and the process can't end. May be repeated.
 */
export function resetSocket(socket: Socket): void {
  const isSendingEnd = socket.writableEnded && !socket.writableFinished && socket.writableLength === 0
  if (isSendingEnd) socket.destroy()
  else socket.resetAndDestroy()
}
