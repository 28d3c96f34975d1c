import type { Duplex } from 'node:stream'
import { once } from '../../lib/turns/once.ts'
import type { Release } from '../../lib/turns/semaphore.ts'
import { RequestRefused } from './request-refused.ts'

const KIB = 1024

/** The most bytes that the connections of one sandbox keep in the process that serves all sandboxes. Bodies have a budget of their own. */
export const CONNECTION_MEMORY_BYTES = 64 * KIB * KIB

/** What a connection keeps, in bytes: what its process grew by with hundreds of them, rounded up (2026-11-30, Node 24). */
export const KEPT = {
  /** Two sockets on which nothing waits: 7 KiB. */
  connection: 8 * KIB,
  /** TLS on both of them: 97 KiB. */
  tls: 96 * KIB,
  /** A direction of a relay whose reader is slower: a piece that is being written, and one that was read ahead. */
  stalledRelay: 128 * KIB,
  /** What is read ahead of what is being written, with the buffers of TLS. Also what waits for a connection to the server. */
  readAhead: 192 * KIB,
  /** A stream of HTTP/2 beside its head. */
  stream: 8 * KIB,
} as const

/** The memory that the connections of one sandbox may keep. */
export type ConnectionMemory = {
  /** Reserves bytes until they are released. Throws `RequestRefused` if the sandbox would keep too much. */
  reserve(bytes: number): Release
}

/** Gives each sandbox at most `maxBytes`, so that none takes the memory of others. */
export function makeConnectionMemory(maxBytes: number): (sandbox: string) => ConnectionMemory {
  const kept = new Map<string, number>()

  function change(sandbox: string, bytes: number): void {
    const own = (kept.get(sandbox) ?? 0) + bytes
    if (own === 0) kept.delete(sandbox)
    else kept.set(sandbox, own)
  }

  return (sandbox) => ({
    reserve(bytes) {
      if ((kept.get(sandbox) ?? 0) + bytes > maxBytes)
        throw new RequestRefused('the connections of the sandbox keep too much memory', { isByPolicy: true })
      change(sandbox, bytes)
      return once(() => {
        change(sandbox, -bytes)
      })
    },
  })
}

/** Reserves bytes until a stream is closed. */
export function keepUntilClosed(memory: ConnectionMemory, bytes: number, stream: Duplex): void {
  const release = memory.reserve(bytes)
  if (stream.closed) release()
  else stream.once('close', release)
}

/** Reserves bytes while `work` runs. */
export async function keepWhile<Result>(
  memory: ConnectionMemory,
  bytes: number,
  work: () => Promise<Result>,
): Promise<Result> {
  const release = memory.reserve(bytes)
  try {
    return await work()
  } finally {
    release()
  }
}
