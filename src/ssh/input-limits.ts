import type { Socket } from 'node:net'
import type ssh2 from 'ssh2'

/** How much may be unsent before nothing more is read. Channels stop at 1 MiB, so only replies to requests exceed it. */
const UNSENT_MAX_BYTES = 2 * 1024 * 1024
/** How many bytes of all channels together may be unread before nothing more is read. */
const UNREAD_MAX_BYTES = 32 * 1024 * 1024
/**
 * How many bytes of a channel may be unread. The library grants a window of 2 MiB, and renews it while fewer than 2 MiB are unread
 * (`lib/Channel.js` of ssh2 1.17).
 */
const CHANNEL_UNREAD_MAX_BYTES = 4 * 1024 * 1024

/** Serves a channel by `use`, and limits its input meanwhile. Input that `use` leaves unread is dropped. */
export type LimitInput = (channel: ssh2.ServerChannel, use: () => Promise<void>) => Promise<void>

/**
 * Makes the limit of a connection. Nothing is read from a client while it takes nothing, because many requests of SSH
 * have a reply outside any channel. Nothing is read either while its channels keep too much unread, because a client may
 * fill the windows of all of them. A client that sends more on a channel than its window allows loses its connection.
 */
export function makeInputLimit(socket: Socket): LimitInput {
  const inUse = new Set<ssh2.ServerChannel>()
  const check = (): void => {
    const unread = [...inUse].reduce((sum, { readableLength }) => sum + readableLength, 0)
    const isBehind = socket.writableLength > UNSENT_MAX_BYTES || unread > UNREAD_MAX_BYTES
    if (isBehind) socket.pause()
    else if (socket.isPaused()) socket.resume()
  }
  socket.on('data', check)
  socket.on('drain', check)
  return async (channel, use) => {
    const push = channel.push.bind(channel)
    const read = channel.read.bind(channel)
    channel.push = (piece, encoding) => {
      if (piece !== null && !inUse.has(channel)) return false
      if (channel.readableLength <= CHANNEL_UNREAD_MAX_BYTES) return push(piece, encoding)
      socket.destroy()
      return false
    }
    channel.read = (size) => {
      const piece: unknown = read(size)
      if (socket.isPaused()) check()
      return piece
    }
    inUse.add(channel)
    try {
      await use()
    } finally {
      inUse.delete(channel)
      channel.unpipe()
      Object.assign(channel, { _waitChanDrain: false }) // grants no more
      read()
      if (socket.isPaused()) check()
    }
  }
}
