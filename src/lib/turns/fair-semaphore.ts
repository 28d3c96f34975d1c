import type { Release } from './semaphore.ts'

/**
 * A semaphore that is fair between keys. While callers wait, each free permit goes to the next key in turn, not to the
 * next caller. A key with many callers delays only its own callers. This type is separate from `Semaphore`, which has
 * no keys, no share per key, and no limit on waiting callers.
 */
export type FairSemaphore = {
  /**
   * Waits for a permit of this key. Resolves with the function that releases it. Returns null, without waiting, when
   * `waitersPerKey` callers of this key already wait.
   */
  acquire(key: string): Promise<Release> | null
  /** Whether another key uses the semaphore now, or did within `amongOthers.forMs`. Without `amongOthers`, this is never so. */
  isAmongOthers(key: string): boolean
  /** How many permits are acquired now. */
  readonly inUse: number
  /** How many callers wait now. */
  readonly waiting: number
}

export type FairSemaphoreOptions = {
  readonly permits: number
  /** The maximum number of permits of one key at the same time. */
  readonly permitsPerKey: number
  /** The maximum number of waiting callers of one key. */
  readonly waitersPerKey: number
  /** A lower maximum of permits while other keys use the semaphore as well. Absent: `permitsPerKey`. */
  readonly amongOthers?: AmongOthers
}

/** How many permits a key may have if another key has acquired one within the last `forMs`, by a monotonic clock. */
export type AmongOthers = { readonly permitsPerKey: number; readonly forMs: number; readonly nowMs: () => number }

/**
 * Runs `work` with a permit of `key`. Rejects with the error that `onFull` returns when too many callers of this key
 * already wait.
 */
export async function runFairly<Result>(
  semaphore: Pick<FairSemaphore, 'acquire'>,
  key: string,
  { work, onFull }: { readonly work: () => Promise<Result>; readonly onFull: () => Error },
): Promise<Result> {
  const acquired = semaphore.acquire(key)
  if (acquired === null) throw onFull()
  const release = await acquired
  try {
    return await work()
  } finally {
    release()
  }
}

/** Creates a fair semaphore. A key without permits and waiting callers uses no memory. */
export function makeFairSemaphore(options: FairSemaphoreOptions): FairSemaphore {
  const { permits, permitsPerKey, waitersPerKey, amongOthers } = options
  const held = new Map<string, number>()
  const queues = new Map<string, ((release: Release) => void)[]>() // the key whose turn is next comes first
  let inUse = 0
  let waiting = 0
  const { noteUse, isAmongOthers } = amongOthers === undefined ? ALONE : trackKeys(amongOthers)

  function hasShare(key: string): boolean {
    const count = held.get(key) ?? 0
    if (count >= permitsPerKey) return false
    return amongOthers === undefined || count < amongOthers.permitsPerKey || !isAmongOthers(key)
  }

  function grant(key: string): Release {
    inUse += 1
    held.set(key, (held.get(key) ?? 0) + 1)
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      inUse -= 1
      const left = (held.get(key) ?? 1) - 1
      if (left === 0) held.delete(key)
      else held.set(key, left)
      serveNext()
    }
  }

  function serveNext(): void {
    for (const [key, queue] of queues) {
      if (inUse >= permits) return
      if (!hasShare(key)) continue // skips at most as many keys as have permits
      const next = queue.shift()
      queues.delete(key)
      if (queue.length > 0) queues.set(key, queue)
      if (next === undefined) continue
      waiting -= 1
      next(grant(key))
    }
  }

  return {
    acquire(key) {
      noteUse(key)
      const queue = queues.get(key)
      if (queue === undefined && inUse < permits && hasShare(key)) return Promise.resolve(grant(key))
      if ((queue?.length ?? 0) >= waitersPerKey) return null
      return new Promise((resolve) => {
        waiting += 1
        if (queue === undefined) queues.set(key, [resolve])
        else queue.push(resolve)
      })
    },
    isAmongOthers,
    get inUse() {
      return inUse
    },
    get waiting() {
      return waiting
    },
  }
}

/** Which keys use something now. */
type KeyTracker = {
  readonly noteUse: (key: string) => void
  /** Whether another key was used within the last `forMs`. */
  readonly isAmongOthers: (key: string) => boolean
}

const ALONE: KeyTracker = { noteUse: () => undefined, isAmongOthers: () => false }

/** Remembers the two keys that were used last. */
export function trackKeys({ forMs, nowMs }: Pick<AmongOthers, 'forMs' | 'nowMs'>): KeyTracker {
  let latest = { key: '', atMs: Number.NEGATIVE_INFINITY }
  let previous = latest // the last use of another key than that of `latest`
  return {
    noteUse(key) {
      if (latest.key !== key) previous = latest
      latest = { key, atMs: nowMs() }
    },
    isAmongOthers: (key) => nowMs() - (latest.key === key ? previous : latest).atMs < forMs,
  }
}
