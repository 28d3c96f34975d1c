/** How concurrent items are processed together. */
export type BatchOptions<Item, Result> = {
  /** Processes items of one group. Resolves with one result for each item, in their order. */
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>
  /** Items of different groups are processed by separate calls, so that a failure of one group affects no other. */
  readonly groupOf: (item: Item) => string
  readonly maxItems: number
  readonly maxInFlight: number
  /**
   * Divides items evenly among `maxInFlight` batches, so that this process and the database are busy at the same time.
   * Otherwise all batches would run in step, and each of the two would idle while the other works. A batch contains at
   * most `1 / maxInFlight` of the items that wait or are in progress. If `MIN_BALANCED_ITEMS` or more items of a group
   * are in progress, its next batch starts only once as many items wait. A batch may always have `MIN_BALANCED_ITEMS`
   * items.
   */
  readonly isBalanced?: boolean
  /**
   * Called after each batch, once its items have their results. The next batch can't start before the promise resolves,
   * so it has more items.
   */
  readonly pauseAfter?: () => Promise<void>
}

/** A balanced batch may always have this many items, because each batch costs a commit and round trips. */
export const MIN_BALANCED_ITEMS = 32

type Waiting<Item, Result> = {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (cause: unknown) => void
}

/**
 * Turns `run`, which processes many items, into a function of one item. The calls of one turn of the event loop form a
 * batch. While `maxInFlight` batches are in progress, later calls wait and form the next batch. If `run` rejects for a
 * group, the calls for all items of the group reject.
 */
export function makeBatch<Item, Result>(options: BatchOptions<Item, Result>): (item: Item) => Promise<Result> {
  let waiting: Waiting<Item, Result>[] = []
  const { maxInFlight, maxItems, groupOf } = options
  const underWay = new Map<string, number>() // the number of items in progress, by group
  let inFlight = 0
  let isScheduled = false

  const nextBatchSize = (): number => {
    const [first] = waiting
    if (first === undefined || inFlight >= maxInFlight) return 0
    if (options.isBalanced !== true) return maxItems
    const inProgress = underWay.get(groupOf(first.item)) ?? 0
    if (inProgress >= MIN_BALANCED_ITEMS && waiting.length < inProgress) return 0
    const part = Math.ceil((waiting.length + inProgress) / maxInFlight)
    return Math.min(maxItems, Math.max(part, MIN_BALANCED_ITEMS))
  }

  const schedule = (): void => {
    if (isScheduled || nextBatchSize() === 0) return
    isScheduled = true
    setImmediate(() => {
      isScheduled = false
      const size = nextBatchSize()
      const batch = waiting.slice(0, size)
      waiting = waiting.slice(size)
      inFlight += 1
      void runBatch(batch) // rejects only if `pauseAfter` does: every other failure rejects the calls of its items
      schedule()
    })
  }

  const finish = (group: string, count: number): void => {
    const left = (underWay.get(group) ?? 0) - count
    if (left > 0) underWay.set(group, left)
    else underWay.delete(group)
  }

  const runBatch = async (batch: readonly Waiting<Item, Result>[]): Promise<void> => {
    const groups = Map.groupBy(batch, ({ item }) => groupOf(item))
    for (const [group, { length }] of groups) underWay.set(group, (underWay.get(group) ?? 0) + length)
    await Promise.all([...groups.values()].map((group) => runGroup(options.run, group)))
    try {
      await options.pauseAfter?.()
    } finally {
      inFlight -= 1
      for (const [group, { length }] of groups) finish(group, length)
      schedule()
    }
  }

  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject })
      schedule()
    })
}

async function runGroup<Item, Result>(
  run: BatchOptions<Item, Result>['run'],
  group: readonly Waiting<Item, Result>[],
): Promise<void> {
  try {
    const results = await run(group.map(({ item }) => item))
    if (results.length !== group.length)
      throw new Error(`a batch of ${String(group.length)} returned ${String(results.length)} results`)
    group.forEach(({ resolve }, index) => {
      resolve(results[index] as Result) // each index below the length has a result
    })
  } catch (error) {
    for (const { reject } of group) reject(error)
  }
}
