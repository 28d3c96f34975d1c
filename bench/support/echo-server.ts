/**
 * Runs a bare WebSocket server as a process. The process prints its port and sends every message back, no faster than
 * the client reads.
 */
import { createServer } from 'node:http'
import { WebSocketServer } from 'ws'

/** The number of unsent bytes above which the server stops reading. */
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
