/** Lets work on one key run one after the other, and work on different keys together. */
export type Turns = {
  /** Runs `work` when all that was given for `key` before has ended, well or badly. */
  take<Result>(key: string, work: () => Promise<Result>): Promise<Result>
}

export function makeTurns(): Turns {
  const last = new Map<string, Promise<void>>()
  return {
    take: async (key, work) => {
      const before = last.get(key)
      const { promise: done, resolve: end } = Promise.withResolvers<void>()
      last.set(key, done)
      try {
        await before
        return await work()
      } finally {
        end()
        if (last.get(key) === done) last.delete(key)
      }
    },
  }
}
