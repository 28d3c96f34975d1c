import type { Socket } from 'node:net'

/** How often a connection is looked at. Idle times of sandboxes are in whole seconds. */
const LOOK_EVERY_MS = 1_000

/** Calls `touch` now, and then each second in which a connection carried bytes, until it is closed. Returns the connection. */
export function touchWhileUsed(socket: Socket, touch: () => void): Socket {
  let seen = 0
  touch()
  const look = setInterval(() => {
    const carried = socket.bytesRead + socket.bytesWritten
    if (carried !== seen) touch()
    seen = carried
  }, LOOK_EVERY_MS)
  look.unref()
  socket.once('close', () => {
    clearInterval(look)
  })
  return socket
}
