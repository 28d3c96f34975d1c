import type { Socket } from 'node:net'
import type ssh2 from 'ssh2'

/**
 * How many bytes of a channel may be unread. The library grants a window of 2 MiB, and renews it while fewer than 2 MiB are unread
 * (`lib/Channel.js` of ssh2 1.17).
 */
const UNREAD_MAX_BYTES = 4 * 1024 * 1024

/** Ends the connection of a client that sends more on a channel than its window allows. The library would keep all of it. */
export function enforceWindow(channel: ssh2.ServerChannel, socket: Socket): ssh2.ServerChannel {
  const push = channel.push.bind(channel)
  channel.push = (piece, encoding) => {
    if (channel.readableLength <= UNREAD_MAX_BYTES) return push(piece, encoding)
    socket.destroy()
    return false
  }
  return channel
}
