import type { Channel } from './channel.ts'
import { makeInputBudget } from './flow-control.ts'

/**
 * Limits the memory of one client's file sessions. All of them share the permits for data to the client, the queue in
 * which that data is sent, and the limit on data into the sandbox.
 */
export type FsFlowControl = {
  /**
   * Waits for a permit to keep one piece of a file in memory. Permits are granted in the order of the calls. Null when
   * the client has disconnected.
   */
  acquire(): Promise<ReleasePermit | null>
  /** Returns a permit if one is free and no other session waits for one. Otherwise null. */
  tryAcquire(): ReleasePermit | null
  /** Sends data once the client can receive it. Resolves after that, or when the client has disconnected. */
  send(id: number, data: Buffer): Promise<void>
  /**
   * Adds `bytes` to the data on its way into the sandbox. The returned function subtracts them again. Above a limit,
   * the client is paused.
   */
  trackInput(bytes: number): () => void
  readonly isClosed: boolean
  /** Ends all waits at once. Called when the client has disconnected. */
  close(): void
}

/** Releases the permit. Further calls do nothing. */
export type ReleasePermit = () => void

/** The maximum number of pieces in memory at a time, about 8 MiB. */
const PERMITS = 8
/** Above this much data on its way into the sandbox, the client is paused until half of it has been written. */
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
