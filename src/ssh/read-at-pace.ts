import type { Socket } from 'node:net'

/** How much may be unsent before nothing more is read. Channels stop at 1 MiB, so only replies to requests exceed it. */
const UNSENT_MAX_BYTES = 2 * 1024 * 1024

/**
 * Reads nothing from a client while it takes nothing. Many requests of SSH have a reply outside any channel, so a client that sends
 * them and doesn't read would fill the memory.
 */
export function readAtPace(socket: Socket): void {
  const resume = (): void => {
    socket.resume()
  }
  socket.on('data', () => {
    if (socket.writableLength <= UNSENT_MAX_BYTES) return
    socket.pause()
    socket.once('drain', resume)
  })
}
