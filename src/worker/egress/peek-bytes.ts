import type { Socket } from 'node:net'

type Peek<Result> = {
  /** Returns what the bytes show, or null if it takes more of them. */
  readonly parse: (bytes: Buffer) => Result | null
  readonly maxBytes: number
  /** Null: as long as the connection is open. */
  readonly limitMs: number | null
}

/**
 * Reads the first bytes of a connection until they show something. They stay in the socket for the next reader. Null: they
 * show nothing within the limits, or the client ended before.
 */
export async function peekBytes<Result>(
  socket: Socket,
  { parse, maxBytes, limitMs }: Peek<Result>,
): Promise<Result | null> {
  const { promise, resolve } = Promise.withResolvers<Result | null>()
  let read: Buffer = Buffer.alloc(0)
  const next = (): Buffer | null => (read.length < maxBytes ? (socket.read() as Buffer | null) : null)
  const look = (): void => {
    for (let chunk = next(); chunk !== null; chunk = next()) read = Buffer.concat([read, chunk])
    const found = parse(read)
    if (found !== null || read.length >= maxBytes) finish(found)
  }
  const giveUp = (): void => {
    finish(null)
  }
  /** Puts the bytes back at once: after the socket's `end` it would be too late. */
  const finish = (found: Result | null): void => {
    socket.off('readable', look).off('end', giveUp).off('close', giveUp)
    if (read.length > 0 && !socket.destroyed && !socket.readableEnded) socket.unshift(read)
    resolve(found)
  }
  const timer = limitMs === null ? null : setTimeout(giveUp, limitMs)
  socket.on('readable', look).on('end', giveUp).on('close', giveUp)
  look()
  if (socket.destroyed || socket.readableEnded) giveUp() // no event follows
  try {
    return await promise
  } finally {
    if (timer !== null) clearTimeout(timer)
  }
}
