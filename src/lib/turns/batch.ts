import { nextTurn } from './next-turn.ts'

/** How concurrent items are processed together. */
export type BatchOptions<Item, Result> = {
  /** Processes items of one group. Resolves with one result for each item, in their order. */
  readonly run: (items: readonly Item[]) => Promise<readonly Result[]>
  /** Items of different groups are in different batches, so that a failure or many items of one group affect no other. */
  readonly groupOf: (item: Item) => string
  readonly maxItems: number
  /** How many batches of a group are in progress at most. */
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
   * Whether others need this process and the database as well. While they do, a group has one batch in progress, and
   * its calls go on in portions, a turn of the event loop each (decision 75). Absent: never.
   */
  readonly isAmongOthers?: (group: string) => boolean
  /**
   * Called after each batch, once its items have their results. The next batch can't start before the promise resolves,
   * so it has more items.
   */
  readonly pauseAfter?: () => Promise<void>
}

/** A balanced batch may always have this many items, because each batch costs a commit and round trips. */
export const MIN_BALANCED_ITEMS = 32

/** How many calls go on in one turn among others. What follows a call, such as its reply, runs in the same turn. */
const PORTION = 16

type Waiting<Item, Result> = {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (cause: unknown) => void
}

/**
 * Turns `run`, which processes many items, into a function of one item. The calls of one turn of the event loop form a
 * batch of each group. While `maxInFlight` batches of a group are in progress, its later calls wait and form its next batch. Groups
 * never wait for one another. If `run` rejects, the calls for all items of the batch reject.
 */
export function makeBatch<Item, Result>(options: BatchOptions<Item, Result>): (item: Item) => Promise<Result> {
  const groups = new Map<string, (one: Waiting<Item, Result>) => void>()
  return (item) =>
    new Promise((resolve, reject) => {
      const key = options.groupOf(item)
      const known = groups.get(key)
      const add = known ?? makeGroup(options, key, () => groups.delete(key))
      if (known === undefined) groups.set(key, add)
      add({ item, resolve, reject })
    })
}

/** Makes the batches of one group. `onIdle` is called when none of its items waits or is in progress. */
function makeGroup<Item, Result>(
  { run, maxInFlight, maxItems, isBalanced = false, isAmongOthers, pauseAfter }: BatchOptions<Item, Result>,
  group: string,
  onIdle: () => void,
): (one: Waiting<Item, Result>) => void {
  let waiting: Waiting<Item, Result>[] = []
  let inProgress = 0 // items
  let inFlight = 0 // batches
  let isScheduled = false
  const mustShare = (): boolean => isAmongOthers?.(group) ?? false

  const nextBatchSize = (): number => {
    const limit = mustShare() ? 1 : maxInFlight
    if (waiting.length === 0 || inFlight >= limit) return 0
    if (!isBalanced) return maxItems
    if (inProgress >= MIN_BALANCED_ITEMS && waiting.length < inProgress) return 0
    const part = Math.ceil((waiting.length + inProgress) / limit)
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
      void runAndGoOn(batch) // rejects only if `pauseAfter` does: every other failure rejects the calls of its items
      schedule()
    })
  }

  const runAndGoOn = async (batch: readonly Waiting<Item, Result>[]): Promise<void> => {
    inFlight += 1
    inProgress += batch.length
    await runBatch(run, batch, mustShare)
    try {
      await pauseAfter?.()
    } finally {
      inFlight -= 1
      inProgress -= batch.length
      if (inFlight === 0 && waiting.length === 0) onIdle()
      else schedule()
    }
  }

  return (one) => {
    waiting.push(one)
    schedule()
  }
}

async function runBatch<Item, Result>(
  run: BatchOptions<Item, Result>['run'],
  batch: readonly Waiting<Item, Result>[],
  mustShare: () => boolean,
): Promise<void> {
  let settle: (one: Waiting<Item, Result>, index: number) => void
  try {
    const results = await run(batch.map(({ item }) => item))
    if (results.length !== batch.length)
      throw new Error(`a batch of ${String(batch.length)} returned ${String(results.length)} results`)
    settle = ({ resolve }, index) => {
      resolve(results[index] as Result) // each index below the length has a result
    }
  } catch (error) {
    settle = ({ reject }) => {
      reject(error)
    }
  }
  for (const [index, one] of batch.entries()) {
    if (index > 0 && index % PORTION === 0 && mustShare()) await nextTurn()
    settle(one, index)
  }
}
