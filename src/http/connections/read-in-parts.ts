import type { Socket } from 'node:net'

/** The sizes of the parts: first the smallest, then twice the last one while a part has few chunks. */
const PART_MIN_BYTES = 1024
const PART_MAX_BYTES = 64 * 1024
const FEW_CHUNKS = 16

/**
 * Takes what Node reads of a connection of an HTTP server, and gives it to Node's parser in parts. The connection may be paused between
 * two of them, in the middle of a read. `countChunks` returns how many chunks were parsed so far. Returns the function that
 * ends this. Call it when the connection is upgraded, because the parser then serves another connection.
 */
export function readInParts(socket: Socket, countChunks: () => number): () => void {
  const [parse] = socket.listeners('data') // Node's own
  if (parse === undefined) return () => undefined
  let hasParser = true
  const onData = (read: Buffer): void => {
    const { timeout = 0 } = socket
    if (timeout > 0) socket.setTimeout(timeout) // begins anew, as at each read, because these bytes may have waited
    let [at, size] = [0, PART_MIN_BYTES]
    while (at < read.length) {
      if (socket.isPaused()) {
        socket.unshift(read.subarray(at))
        return
      }
      const [before, isWritable] = [countChunks(), socket.writable]
      Reflect.apply(parse, socket, [read.subarray(at, at + size)])
      at += size
      if (isWritable && !socket.writable) return // it was refused or closed for this part, so the rest is of no use
      if (!hasParser) {
        // The client of a WebSocket must not send so much before the reply (RFC 6455, section 4.1).
        if (at < read.length) socket.destroy()
        return
      }
      size = countChunks() - before > FEW_CHUNKS ? PART_MIN_BYTES : Math.min(2 * size, PART_MAX_BYTES)
    }
  }
  socket.removeAllListeners('data')
  socket.on('data', onData) // from now on, Node's parser doesn't read the connection by itself
  socket.push('') // ends the read that the stream began before the parser took over, so that it can begin another
  return () => {
    hasParser = false
    socket.removeListener('data', onData)
  }
}
