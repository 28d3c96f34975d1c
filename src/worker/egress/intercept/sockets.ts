import type { Duplex } from 'node:stream'
import { keepWhile, type ConnectionMemory } from '../connection-memory.ts'

export type WriteBounds = {
  readonly memory: ConnectionMemory
  /** How much more the source of the parts keeps while they wait. */
  readonly readAheadBytes: number
}

/**
 * Writes all parts, and waits until the other side has read most of them. Memory is reserved meanwhile. Rejects if the connection is
 * closed, and with `RequestRefused` if the connections of the sandbox keep too much.
 */
export async function writeAll(
  socket: Duplex,
  parts: readonly Buffer[],
  { memory, readAheadBytes }: WriteBounds,
): Promise<void> {
  if (parts.length === 0) return
  socket.cork()
  const isFree = parts.map((part) => socket.write(part)).at(-1)
  socket.uncork()
  if (isFree === false)
    await keepWhile(memory, socket.writableLength + readAheadBytes, () => firstOf(socket, ['drain', 'close']))
  if (socket.destroyed) throw new Error('the connection was closed')
}

/** Waits for one of several events, and leaves no listener behind. If the stream was destroyed, it doesn't wait: none may follow. */
export function firstOf(socket: Duplex, events: readonly string[]): Promise<void> {
  if (socket.destroyed) return Promise.resolve()
  const { promise, resolve } = Promise.withResolvers<void>()
  const finish = (): void => {
    for (const event of events) socket.off(event, finish)
    resolve()
  }
  for (const event of events) socket.on(event, finish)
  return promise
}
