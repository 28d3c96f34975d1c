import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

/**
 * A stream over a connection that hides its handle. Node's HTTP/2 takes bytes from a handle itself, and then an exception
 * that nobody can catch ends the process if the connection ends while bytes of it still wait in the socket (Node 24).
 */
export function detachedStream(socket: Socket): Duplex {
  const stream = new Duplex({
    read: () => socket.resume(),
    write: (bytes: Buffer, _encoding, done) => socket.write(bytes, done),
    writev(chunks, done) {
      socket.cork()
      chunks.forEach(({ chunk }, index) => {
        if (index < chunks.length - 1) socket.write(chunk as Buffer)
        else socket.write(chunk as Buffer, done)
      })
      socket.uncork()
    },
    final: (done) => socket.end(done),
    destroy(error, done) {
      socket.destroy()
      done(error)
    },
  })
  stream.on('error', () => socket.destroy())
  socket.on('data', (bytes: Buffer) => {
    if (!stream.push(bytes)) socket.pause()
  })
  socket.on('end', () => stream.push(null))
  socket.on('close', () => stream.destroy())
  socket.setNoDelay(true) // window updates are small
  socket.pause()
  return stream
}
