import type { Readable } from 'node:stream'
import type { Channel } from './channel.ts'

/**
 * Sends what a stream gives until it ends or is destroyed. What gathers while the client is slow, or within one turn of
 * the event loop, goes out together; the stream's own buffer limit then stops who writes to it. Never rejects: of a
 * stream that breaks off, its owner tells.
 */
export function sendStream(channel: Channel, stream: Readable, send: (data: Buffer) => void): Promise<void> {
  return new Promise((resolve) => {
    let isWaiting = false
    const turn = (): void => {
      isWaiting = false
      const data: unknown = stream.read()
      if (data instanceof Buffer) send(data)
    }
    const takeTurn = (): void => {
      channel.whenCanSend(turn)
    }
    stream.on('readable', () => {
      if (isWaiting) return
      isWaiting = true
      setImmediate(takeTurn)
    })
    stream.on('error', (error) => {
      channel.log.debug({ err: error }, 'what a command channel carries broke off')
    })
    stream.on('close', resolve)
    stream.on('end', resolve)
    if (stream.readableEnded || stream.destroyed) resolve() // a short process ends before anybody listens
  })
}
