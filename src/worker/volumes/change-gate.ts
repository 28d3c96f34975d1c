/**
 * Keeps those who use files of a volume apart from those who replace a folder of it. Any number may use a volume at once. A
 * replacement is refused while somebody uses the volume, and whoever comes during a replacement waits for its end.
 */
export type ChangeGate = {
  using<T>(key: string, work: () => Promise<T>): Promise<T>
  /** Returns null without running `work` if the volume is in use. */
  replacing<T>(key: string, work: () => Promise<T>): Promise<T | null>
}

/** Creates a gate. A key uses memory only while work under the key runs or waits. */
export function makeChangeGate(): ChangeGate {
  const users = new Map<string, number>()
  const replacements = new Map<string, Promise<unknown>>()
  return {
    async using(key, work) {
      for (let end = replacements.get(key); end !== undefined; end = replacements.get(key)) await end
      users.set(key, (users.get(key) ?? 0) + 1)
      try {
        return await work()
      } finally {
        const left = (users.get(key) ?? 1) - 1
        if (left === 0) users.delete(key)
        else users.set(key, left)
      }
    },
    async replacing(key, work) {
      if (users.has(key) || replacements.has(key)) return null
      const { promise, resolve } = Promise.withResolvers<void>()
      replacements.set(key, promise)
      try {
        return await work()
      } finally {
        replacements.delete(key)
        resolve()
      }
    },
  }
}
