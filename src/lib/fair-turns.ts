/**
 * Spreads work over turns of the event loop. In one turn, one piece of each key begins, and further ones only until `budgetMs` have
 * passed. The rest begins in later turns, keys in turn. A key with much work then delays only its own work.
 */
export type FairTurns = {
  /** Resolves when a piece of work of this key may begin. Returns null if it may begin at once, which is usual. */
  next(key: string): Promise<void> | null
}

/** How long work may begin in a turn, and the time by a monotonic clock, in milliseconds. */
export type FairTurnsOptions = { readonly budgetMs: number; readonly nowMs: () => number }

/** Creates turns without work. A key without waiting work uses no memory. */
export function makeFairTurns({ budgetMs, nowMs }: FairTurnsOptions): FairTurns {
  const queues = new Map<string, (() => void)[]>() // the key whose work begins next comes first
  const begun = new Set<string>() // the keys of which work has begun in this turn
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
      await Promise.resolve() // the work runs until it waits for something
    } while (queues.size > 0 && nowMs() < endsMs)
  }

  return {
    next(key) {
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
