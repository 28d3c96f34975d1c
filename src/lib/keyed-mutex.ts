/** Mutual exclusion by key: work under the same key runs one after another, work under different keys runs side by side. */
export type KeyedMutex = {
  /** Runs `work` once everything that was given earlier for `key` has ended, whether it succeeded or failed. */
  run<Result>(key: string, work: () => Promise<Result>): Promise<Result>
}

/** Creates a mutex that remembers a key only while work runs or waits under it. */
export function makeKeyedMutex(): KeyedMutex {
  const last = new Map<string, Promise<void>>()
  return {
    run: async (key, work) => {
      const before = last.get(key)
      const { promise: done, resolve: finish } = Promise.withResolvers<void>()
      last.set(key, done)
      try {
        await before
        return await work()
      } finally {
        finish()
        if (last.get(key) === done) last.delete(key)
      }
    },
  }
}
