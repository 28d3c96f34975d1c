/** Work on one thing at a time: what is asked for under the same key runs in the order asked. */
export type Turns = { take<T>(key: string, work: () => Promise<T>): Promise<T> }

/** Turns that are kept only while somebody waits. */
export function makeTurns(): Turns {
  const last = new Map<string, Promise<unknown>>()
  return {
    async take(key, work) {
      const before = last.get(key) ?? Promise.resolve()
      const mine = before.then(work, work)
      last.set(key, mine)
      try {
        return await mine
      } finally {
        if (last.get(key) === mine) last.delete(key)
      }
    },
  }
}
