import type { Duplex } from 'node:stream'
import type { RawData, WebSocket } from 'ws'

/** Above this many unsent bytes the channel is paused; below the lower mark it flows again. */
const HIGH_WATER_BYTES = 1024 * 1024
const LOW_WATER_BYTES = 256 * 1024

/** RFC 6455, 7.4.1. */
const CLOSE = { normal: 1000, notBinary: 1003, failed: 1011 } as const

/**
 * Carries bytes between a WebSocket and a channel until either ends, then ends the other; resolves when both are done.
 * A side that is slow slows the other down. A peer that misses a whole period of pings is dropped.
 */
export function pipeWebSocket(socket: WebSocket, channel: Duplex, options: { readonly pingMs: number }): Promise<void> {
  toChannel(socket, channel)
  toSocket(socket, channel)
  const stopPings = pingEvery(socket, options.pingMs)
  return new Promise((resolve) => {
    let open = 2
    const oneEnded = (): void => {
      open -= 1
      if (open === 0) resolve()
    }
    socket.once('close', () => {
      stopPings()
      channel.destroy()
      oneEnded()
    })
    socket.on('error', () => {
      socket.terminate() // a protocol error of the peer; `close` follows
    })
    channel.once('close', () => {
      socket.close(CLOSE.normal, 'the channel ended')
      oneEnded()
    })
    channel.on('error', () => {
      socket.close(CLOSE.failed, 'the channel failed')
    })
    channel.once('end', () => {
      socket.close(CLOSE.normal, 'the channel ended')
    })
    if (channel.destroyed) {
      socket.close(CLOSE.normal, 'the channel ended')
      oneEnded()
    }
  })
}

function toChannel(socket: WebSocket, channel: Duplex): void {
  socket.on('message', (data, isBinary) => {
    if (!isBinary) {
      socket.close(CLOSE.notBinary, 'only binary messages are taken')
      return
    }
    if (channel.writable && !channel.write(bytesOf(data))) socket.pause()
  })
  channel.on('drain', () => {
    if (socket.isPaused) socket.resume()
  })
}

function toSocket(socket: WebSocket, channel: Duplex): void {
  channel.on('data', (chunk: Buffer) => {
    if (socket.readyState !== socket.OPEN) return
    socket.send(chunk, { binary: true }, () => {
      if (channel.isPaused() && socket.bufferedAmount < LOW_WATER_BYTES) channel.resume()
    })
    if (socket.bufferedAmount > HIGH_WATER_BYTES) channel.pause()
  })
}

function bytesOf(data: RawData): Buffer {
  if (Buffer.isBuffer(data)) return data
  return Array.isArray(data) ? Buffer.concat(data) : Buffer.from(data)
}

function pingEvery(socket: WebSocket, pingMs: number): () => void {
  let isAlive = true
  socket.on('pong', () => {
    isAlive = true
  })
  const timer = setInterval(() => {
    // A paused socket does not read its pongs: the slow side is the channel, not the peer.
    if (!isAlive && !socket.isPaused) {
      socket.terminate()
      return
    }
    isAlive = false
    if (socket.readyState === socket.OPEN) socket.ping()
  }, pingMs)
  return () => {
    clearInterval(timer)
  }
}
