/** A process with a bare WebSocket server that sends every message back, no faster than it is read. It prints its port. */
import { createServer } from 'node:http'
import { WebSocketServer } from 'ws'

/** The server stops reading above this many unsent bytes. */
const HIGH_WATER_BYTES = 4 * 1024 * 1024

const server = createServer()
const sockets = new WebSocketServer({ server, perMessageDeflate: false, maxPayload: 16 * 1024 * 1024 })
sockets.on('connection', (socket) => {
  socket.on('message', (data) => {
    socket.send(data, { binary: true }, () => {
      if (socket.isPaused && socket.bufferedAmount < HIGH_WATER_BYTES) socket.resume()
    })
    if (socket.bufferedAmount > HIGH_WATER_BYTES) socket.pause()
  })
})
server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  process.stdout.write(`${String(typeof address === 'object' && address !== null ? address.port : 0)}\n`)
})
process.once('SIGTERM', () => process.exit(0))
