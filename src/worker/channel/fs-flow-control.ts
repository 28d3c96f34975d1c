import type { Channel } from './channel.ts'
import { makeInputBudget } from './flow-control.ts'

/**
 * What the file sessions of one client share to bound their memory: permits for data on its way out, turns to send it,
 * and the count of data on its way in.
 */
export type FsFlowControl = {
  /**
   * Waits for a permit to hold up to one piece in memory. Permits go in the order of asking. Null when the client is
   * gone.
   */
  acquire(): Promise<ReleasePermit | null>
  /** A permit, if one is free and nobody waits. */
  tryAcquire(): ReleasePermit | null
  /** Sends data once the client can take it. Resolves then, or when the client is gone. */
  send(id: number, data: Buffer): Promise<void>
  /** Counts data on its way into the sandbox until the returned function is called. Too much pauses the client. */
  trackInput(bytes: number): () => void
  readonly isClosed: boolean
  /** The client is gone: all waits end at once. */
  close(): void
}

/** Returns the permit; may be repeated. */
export type ReleasePermit = () => void

/** Pieces in memory at a time: about 8 MiB. */
const PERMITS = 8
/** Above this much data on its way into the sandbox the client pauses, until half of it is gone. */
const MAX_PENDING_BYTES = 8 * 1024 * 1024

/** Makes the flow control of one client. */
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
