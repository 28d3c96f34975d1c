import type { Channel } from './channel.ts'
import { makeInputCount } from './input-count.ts'

/**
 * What the file sessions of one client share, so that all of them together take a bounded part of memory: permits for
 * data on the way out, turns to send them, and the count of data on the way in.
 */
export type FsFlow = {
  /** A permit to have up to one piece in memory, given in the order of asking; null when the client is gone. */
  permit(): Promise<Permit | null>
  /** A permit if nobody waits and one is free. */
  permitNow(): Permit | null
  /** Sends data once the client has room for them. Resolves then, or when the client is gone. */
  send(id: number, data: Buffer): Promise<void>
  /** Counts data that go into the sandbox until the function that it returns is called; too many stop the client. */
  count(bytes: number): () => void
  readonly isClosed: boolean
  /** The client is gone: whoever waits goes on at once. */
  close(): void
}

/** Gives the permit back; may be repeated. */
export type Permit = () => void

/** Pieces in memory at once: some 8 MiB. */
const PERMITS = 8
/** Data on their way into the sandbox beyond this stop the client, until there are half as many. */
const MAX_WAITING_BYTES = 8 * 1024 * 1024

/** The flow of a client that has no file sessions yet. */
export function makeFsFlow(channel: Channel): FsFlow {
  let free = PERMITS
  let isClosed = false
  const queue: ((permit: Permit | null) => void)[] = []
  const waiting = makeInputCount(() => channel.holdInput(), MAX_WAITING_BYTES)
  const senders = new Set<() => void>()

  const issue = (): Permit => {
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      const next = queue.shift()
      if (next === undefined) free += 1
      else next(issue())
    }
  }
  const permitNow = (): Permit | null => {
    if (isClosed || free === 0) return null
    free -= 1
    return issue()
  }
  return {
    permit() {
      const now = permitNow()
      if (now !== null || isClosed) return Promise.resolve(now)
      return new Promise((resolve) => queue.push(resolve))
    },
    permitNow,
    send(id, data) {
      return new Promise((resolve) => {
        if (isClosed) {
          resolve()
          return
        }
        senders.add(resolve)
        channel.whenRoom(() => {
          if (!senders.delete(resolve)) return
          channel.sendData(id, 'core.fs.data', data)
          resolve()
        })
      })
    },
    count: (bytes) => waiting.add(bytes),
    get isClosed() {
      return isClosed
    },
    close() {
      isClosed = true
      for (const resolve of queue.splice(0)) resolve(null)
      for (const resolve of senders) resolve()
      senders.clear()
      waiting.close()
    },
  }
}
