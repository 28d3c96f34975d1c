/** How concurrent items are processed together. */
export type BatchOptions<Item, Result> = {
  /** Processes items of one group. Resolves with one result for each item, in their order. */
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>
  /** Items of different groups are processed by separate calls, so that a failure of one group affects no other. */
  readonly groupOf: (item: Item) => string
  readonly maxItems: number
  readonly maxInFlight: number
  /**
   * Makes large batches equally large, so that this process and the database are busy at the same time. A batch
   * contains at most its share of all items that wait or are in progress. While a large batch of its group is in
   * progress, the next one starts only once as many items wait. Without this, batches fall into step and each side
   * idles in turn. Up to `MIN_BALANCED_ITEMS` items are never split.
   */
  readonly isBalanced?: boolean
  /**
   * Awaited after each batch, once its items have their results and before the next batch starts. The next batch then
   * has more items.
   */
  readonly pauseAfter?: () => Promise<void>
}

/** Smaller batches are not split, because each batch costs a commit and round trips. */
export const MIN_BALANCED_ITEMS = 32

type Waiting<Item, Result> = {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (cause: unknown) => void
}

/**
 * Turns a function of many items into a function of one item. Calls form one batch within one turn of the event loop,
 * or while `maxInFlight` batches are in progress. If processing a group fails, all its items reject.
 */
export function makeBatch<Item, Result>(options: BatchOptions<Item, Result>): (item: Item) => Promise<Result> {
  let waiting: Waiting<Item, Result>[] = []
  const { maxInFlight, maxItems, groupOf } = options
  const underWay = new Map<string, number>() // the number of items of each group
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
      void runBatch(batch) // it rejects only if `pauseAfter` does: the items get every other failure
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
