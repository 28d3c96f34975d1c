/** How items that arrive together are worked on together. */
export type BatchOptions<Item, Result> = {
  /** Works on the items of one group; answers one result for each, in their order. */
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>
  /** Items of different groups are worked on apart, so that what fails one group fails no other. */
  readonly groupOf: (item: Item) => string
  readonly maxItems: number
  readonly maxInFlight: number
  /** Awaited after each batch, whose items have their results by then, before another takes its place: more come together. */
  readonly rest?: () => Promise<void>
}

type Waiting<Item, Result> = {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (cause: unknown) => void
}

/**
 * Makes a function of many items into one of a single item: what is asked for within one turn of the event loop, or
 * while `maxInFlight` batches are under way, goes together. A group that fails fails all its items.
 */
export function makeBatch<Item, Result>(options: BatchOptions<Item, Result>): (item: Item) => Promise<Result> {
  let waiting: Waiting<Item, Result>[] = []
  let inFlight = 0
  let isScheduled = false

  const schedule = (): void => {
    if (isScheduled || inFlight >= options.maxInFlight || waiting.length === 0) return
    isScheduled = true
    setImmediate(() => {
      isScheduled = false
      const batch = waiting.slice(0, options.maxItems)
      waiting = waiting.slice(options.maxItems)
      inFlight += 1
      void runBatch(batch) // it rejects only if `rest` does: every failure is given to the items
      schedule()
    })
  }

  const runBatch = async (batch: readonly Waiting<Item, Result>[]): Promise<void> => {
    const groups = Map.groupBy(batch, ({ item }) => options.groupOf(item))
    await Promise.all([...groups.values()].map((group) => runGroup(options.run, group)))
    try {
      await options.rest?.()
    } finally {
      inFlight -= 1
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
      throw new Error(`a batch of ${String(group.length)} answered ${String(results.length)} results`)
    group.forEach(({ resolve }, index) => {
      resolve(results[index] as Result) // an index below the length holds a result
    })
  } catch (error) {
    for (const { reject } of group) reject(error)
  }
}
