/** How items that arrive together are worked on together. */
export type BatchOptions<Item, Result> = {
  /** Works on a batch; answers one result for each item, in their order. */
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>
  readonly maxItems: number
  readonly maxInFlight: number
}

/**
 * Makes a function of many items into one of a single item: what is asked for within one turn of the event loop, or
 * while `maxInFlight` batches are under way, goes together. A batch that fails fails all its items.
 */
export function makeBatch<Item, Result>(options: BatchOptions<Item, Result>): (item: Item) => Promise<Result> {
  type Waiting = {
    readonly item: Item
    readonly resolve: (result: Result) => void
    readonly reject: (cause: unknown) => void
  }
  let waiting: Waiting[] = []
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
      runBatch(batch).finally(() => {
        inFlight -= 1
        schedule()
      })
      schedule()
    })
  }

  const runBatch = async (batch: readonly Waiting[]): Promise<void> => {
    try {
      const results = await options.run(batch.map(({ item }) => item))
      batch.forEach(({ resolve, reject }, index) => {
        const result = results[index]
        if (index < results.length)
          resolve(result as Result) // an index below the length holds a result
        else reject(new Error(`a batch of ${String(batch.length)} answered ${String(results.length)} results`))
      })
    } catch (error) {
      for (const { reject } of batch) reject(error)
    }
  }

  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject })
      schedule()
    })
}
