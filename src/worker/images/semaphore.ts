/** Lets a bounded number of tasks run at once; the others wait in the order of their coming. */
export interface Semaphore {
  run<T>(task: () => Promise<T>): Promise<T>
}

/** `permits` tasks may run at once. Who waits is bounded by who calls. */
export function makeSemaphore(permits: number): Semaphore {
  const waiting: (() => void)[] = []
  let free = permits
  return {
    async run(task) {
      if (free > 0) free -= 1
      else await new Promise<void>((resolve) => waiting.push(resolve))
      try {
        return await task()
      } finally {
        const next = waiting.shift()
        if (next === undefined) free += 1
        else next() // the permit passes on
      }
    },
  }
}
