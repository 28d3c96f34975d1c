import type { Channel } from './channel.ts'
import { makeInputBudget } from './flow-control.ts'

/**
 * What the file sessions of one client share, so that all of them together take a bounded part of memory: permits for
 * data on the way out, turns to send them, and the count of data on the way in.
 */
export type FsFlowControl = {
  /** A permit to have up to one piece in memory, given in the order of asking; null when the client is gone. */
  acquire(): Promise<ReleasePermit | null>
  /** A permit if nobody waits and one is free. */
  tryAcquire(): ReleasePermit | null
  /** Sends data once the client has room for them. Resolves then, or when the client is gone. */
  send(id: number, data: Buffer): Promise<void>
  /** Counts data that go into the sandbox until the function that it returns is called; too many stop the client. */
  trackInput(bytes: number): () => void
  readonly isClosed: boolean
  /** The client is gone: whoever waits goes on at once. */
  close(): void
}

/** Gives the permit back; may be repeated. */
export type ReleasePermit = () => void

/** Pieces in memory at once: some 8 MiB. */
const PERMITS = 8
/** Data on their way into the sandbox beyond this stop the client, until there are half as many. */
const MAX_PENDING_BYTES = 8 * 1024 * 1024

/** The flow of a client that has no file sessions yet. */
export function makeFsFlowControl(channel: Channel): FsFlowControl {
  let free = PERMITS
  let isClosed = false
  const queue: ((permit: ReleasePermit | null) => void)[] = []
  const waiting = makeInputBudget(() => channel.pauseInput(), MAX_PENDING_BYTES)
  const senders = new Set<() => void>()

  const issue = (): ReleasePermit => {
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      const next = queue.shift()
      if (next === undefined) free += 1
      else next(issue())
    }
  }
  const tryAcquire = (): ReleasePermit | null => {
    if (isClosed || free === 0) return null
    free -= 1
    return issue()
  }
  return {
    acquire() {
      const now = tryAcquire()
      if (now !== null || isClosed) return Promise.resolve(now)
      return new Promise((resolve) => queue.push(resolve))
    },
    tryAcquire,
    send(id, data) {
      return new Promise((resolve) => {
        if (isClosed) {
          resolve()
          return
        }
        senders.add(resolve)
        channel.whenCanSend(() => {
          if (!senders.delete(resolve)) return
          channel.sendData(id, 'core.fs.data', data)
          resolve()
        })
      })
    },
    trackInput: (bytes) => waiting.add(bytes),
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
