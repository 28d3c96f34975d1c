import { trackKeys } from './fair-semaphore.ts'

/**
 * Spreads work over turns of the event loop. In one turn, one piece of each key begins, and further ones only until `budgetMs` have
 * passed. The rest begins in later turns, keys in turn. A key with much work then delays only its own work.
 * With `othersForMs`, the work of a key that is alone begins at once: to spread it cost a tenth of the gets and creates a second (2026-11).
 */
export type FairTurns = {
  /** Resolves when a piece of work of this key may begin. Returns null if it may begin at once, which is usual. */
  next(key: string): Promise<void> | null
}

/**
 * How long work may begin in a turn, how long after work of another key a key is not alone, and the time by a monotonic clock, in
 * milliseconds. Without `othersForMs`, the work of a key that is alone is spread, too.
 */
export type FairTurnsOptions = {
  readonly budgetMs: number
  readonly othersForMs?: number
  readonly nowMs: () => number
}

/** Creates turns without work. A key without waiting work uses no memory. */
export function makeFairTurns({ budgetMs, othersForMs, nowMs }: FairTurnsOptions): FairTurns {
  const queues = new Map<string, (() => void)[]>() // the key whose work begins next comes first
  const begun = new Set<string>() // the keys of which work has begun in this turn
  const keys = othersForMs === undefined ? null : trackKeys({ forMs: othersForMs, nowMs })
  let endsMs = 0

  function beginTurn(): void {
    endsMs = nowMs() + budgetMs
    setImmediate(() => {
      begun.clear()
      if (queues.size > 0) void beginWaiting() // it never rejects
    })
  }

  /** Begins the work that fits into a new turn, and at least one piece. */
  async function beginWaiting(): Promise<void> {
    beginTurn()
    do {
      for (const [key, queue] of queues) {
        queues.delete(key)
        begun.add(key)
        const begin = queue.shift()
        if (queue.length > 0) queues.set(key, queue)
        begin?.()
        break
      }
      await afterMicrotasks() // the work runs until it waits for something else than promises
    } while (queues.size > 0 && nowMs() < endsMs)
  }

  return {
    next(key) {
      keys?.noteUse(key)
      if (queues.size === 0 && keys?.isAmongOthers(key) === false) return null
      if (begun.size === 0) beginTurn()
      if (!queues.has(key) && (!begun.has(key) || (queues.size === 0 && nowMs() < endsMs))) {
        begun.add(key)
        return null
      }
      return new Promise((resolve) => {
        const queue = queues.get(key)
        if (queue === undefined) queues.set(key, [resolve])
        else queue.push(resolve)
      })
    },
  }
}

/** Resolves when no promise is left to go on. Node begins a tick before the promises of a timer or an immediate, but not within one. */
async function afterMicrotasks(): Promise<void> {
  await Promise.resolve()
  await new Promise<void>((resolve) => {
    process.nextTick(resolve)
  })
}
