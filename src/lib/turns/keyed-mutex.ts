/**
 * Mutual exclusion by key. Work under the same key runs one after another. Work under different keys runs concurrently.
 */
export type KeyedMutex = {
  /** Runs `work` once all earlier work for `key` has ended, whether it succeeded or failed. */
  run<Result>(key: string, work: () => Promise<Result>): Promise<Result>
}

/** Creates a keyed mutex. A key uses memory only while work under the key runs or waits. */
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
