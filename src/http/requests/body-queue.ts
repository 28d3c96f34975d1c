import { makeFairSemaphore } from '../../lib/fair-semaphore.ts'

/** A body below this takes no longer than other requests do, in bytes. */
const LARGE_BYTES = 64 * 1024

/** Reads bodies so that large ones hold nobody up. */
export type BodyQueue = {
  /** Calls `done` with what `read` gives, at once, or when it is the turn of a large body; `from` says whose body it is. */
  read(body: { readonly from: string; readonly bytes: number }, read: () => unknown, done: Done): void
}

export type Done = (error: Error | null, value?: unknown) => void

/**
 * Reads large bodies one at a time, and between two of them what others sent meanwhile; senders take turns. Several that
 * arrive at once would hold the process for their sum: 4 MiB of JSON take some 100 ms (2026-11). How many wait is bounded by
 * the bytes of bodies that an organization may have under way.
 */
export function makeBodyQueue(): BodyQueue {
  const semaphore = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  return {
    read({ from, bytes }, read, done) {
      if (bytes <= LARGE_BYTES) callDone(read, done)
      else void readQueued(from, read, done) // it never rejects: what fails is given to `done`
    },
  }

  async function readQueued(from: string, read: () => unknown, done: Done): Promise<void> {
    const release = await semaphore.acquire(from)
    setImmediate(() => {
      callDone(read, done) // what its handler does before it waits for anything is part of it
      setImmediate(() => release?.())
    })
  }
}

function callDone(read: () => unknown, done: Done): void {
  let value: unknown
  try {
    value = read()
  } catch (error) {
    done(error instanceof Error ? error : new Error('a body could not be read', { cause: error }))
    return
  }
  done(null, value)
}
