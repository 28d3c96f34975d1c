import type { EventEmitter } from 'node:events'
import type { Duplex } from 'node:stream'

/** Writes all parts, and waits until the other side has read most of them. Rejects if the connection is closed. */
export async function writeAll(socket: Duplex, parts: readonly Buffer[]): Promise<void> {
  if (parts.length === 0) return
  socket.cork()
  const isFree = parts.map((part) => socket.write(part)).at(-1)
  socket.uncork()
  if (isFree === false && !socket.destroyed) await firstOf(socket, ['drain', 'close'])
  if (socket.destroyed) throw new Error('the connection was closed')
}

/** Waits for one of several events, and leaves no listener behind. */
export function firstOf(socket: EventEmitter, events: readonly string[]): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const finish = (): void => {
    for (const event of events) socket.off(event, finish)
    resolve()
  }
  for (const event of events) socket.on(event, finish)
  return promise
}
