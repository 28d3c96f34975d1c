import type { Socket } from 'node:net'
import { NO_FIRST_BYTES, type FirstBytes } from '../../domain/network/judge-connection.ts'
import { FIRST_BYTES_MAX, parseFirstBytes } from './first-bytes.ts'

/** How long a connection may be silent before it counts as one that names nothing. */
export const FIRST_BYTES_LIMIT_MS = 5_000

/**
 * Reads what the first bytes of a connection show. The bytes stay in the socket for the next reader. A client that is
 * silent for `limitMs`, or ends before, shows nothing.
 */
export async function readFirstBytes(socket: Socket, limitMs = FIRST_BYTES_LIMIT_MS): Promise<FirstBytes> {
  const { promise, resolve } = Promise.withResolvers<FirstBytes>()
  let read: Buffer = Buffer.alloc(0)
  const look = (): void => {
    for (let chunk = next(); chunk !== null; chunk = next()) read = Buffer.concat([read, chunk])
    const found = parseFirstBytes(read)
    if (found !== null) resolve(found)
  }
  const next = (): Buffer | null => (read.length < FIRST_BYTES_MAX ? (socket.read() as Buffer | null) : null)
  const giveUp = (): void => {
    resolve(NO_FIRST_BYTES)
  }
  const timer = setTimeout(giveUp, limitMs)
  socket.on('readable', look).on('end', giveUp).on('close', giveUp)
  try {
    look()
    return await promise
  } finally {
    clearTimeout(timer)
    socket.off('readable', look).off('end', giveUp).off('close', giveUp)
    if (read.length > 0 && !socket.destroyed) socket.unshift(read)
  }
}
