/** Places that are lent one at a time to who has fewest turns behind him: who asks for many waits for himself alone. */
export type FairSlots = {
  /** Resolves with what gives the place back, to be called once; null at once when too many of this key wait already. */
  take(key: string): Promise<() => void> | null
  readonly taken: number
  readonly waiting: number
}

export type FairSlotsOptions = {
  readonly slots: number
  /** The most that one key has at once. */
  readonly perKey: number
  /** The most that wait of one key. */
  readonly waitingPerKey: number
}

/** Works in a turn of this key and gives the place back; rejects with what `full` makes when too many of the key wait already. */
export async function inTurn<T>(
  slots: Pick<FairSlots, 'take'>,
  key: string,
  { work, full }: { readonly work: () => Promise<T>; readonly full: () => Error },
): Promise<T> {
  const turn = slots.take(key)
  if (turn === null) throw full()
  const giveBack = await turn
  try {
    return await work()
  } finally {
    giveBack()
  }
}

/** Makes places that keys take turns for: while several wait, each free place goes to the next key, not to the next request. */
export function makeFairSlots({ slots, perKey, waitingPerKey }: FairSlotsOptions): FairSlots {
  const held = new Map<string, number>()
  const queues = new Map<string, ((giveBack: () => void) => void)[]>() // in the order of turns
  let taken = 0
  let waiting = 0

  function lend(key: string): () => void {
    taken += 1
    held.set(key, (held.get(key) ?? 0) + 1)
    return () => {
      taken -= 1
      const left = (held.get(key) ?? 1) - 1
      if (left === 0) held.delete(key)
      else held.set(key, left)
      serveNext()
    }
  }

  function serveNext(): void {
    for (const [key, queue] of queues) {
      if (taken >= slots) return
      if ((held.get(key) ?? 0) >= perKey) continue // at most slots / perKey keys are passed over so
      const next = queue.shift()
      queues.delete(key)
      if (queue.length > 0) queues.set(key, queue)
      if (next === undefined) continue
      waiting -= 1
      next(lend(key))
    }
  }

  return {
    take(key) {
      const queue = queues.get(key)
      if (queue === undefined && taken < slots && (held.get(key) ?? 0) < perKey) return Promise.resolve(lend(key))
      if ((queue?.length ?? 0) >= waitingPerKey) return null
      return new Promise((resolve) => {
        waiting += 1
        if (queue === undefined) queues.set(key, [resolve])
        else queue.push(resolve)
      })
    },
    get taken() {
      return taken
    },
    get waiting() {
      return waiting
    },
  }
}
