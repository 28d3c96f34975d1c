/** Releases a permit. It may be called more than once; only the first call counts. */
export type Release = () => void

/** A fixed number of permits, which limits concurrent work. It does not limit how many callers wait. */
export type Semaphore = {
  /** Acquires a permit and returns the function that releases it. Returns null when no permit is free. */
  tryAcquire(): Release | null
  /**
   * Runs `work` with a permit and releases the permit afterwards. If no permit is free, waits for one. Callers get
   * permits in the order of their calls.
   */
  run<Result>(work: () => Promise<Result>): Promise<Result>
  /** How many permits are acquired now. */
  readonly inUse: number
}

/** Creates a semaphore with `permits` permits. */
export function makeSemaphore(permits: number): Semaphore {
  const waiting: ((release: Release) => void)[] = []
  let inUse = 0

  function grant(): Release {
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      const next = waiting.shift()
      if (next === undefined) inUse -= 1
      else next(grant()) // passes the permit on, so that no later caller overtakes
    }
  }

  function tryAcquire(): Release | null {
    if (inUse >= permits) return null
    inUse += 1
    return grant()
  }

  return {
    tryAcquire,
    async run(work) {
      const release = tryAcquire() ?? (await new Promise<Release>((resolve) => waiting.push(resolve)))
      try {
        return await work()
      } finally {
        release()
      }
    },
    get inUse() {
      return inUse
    },
  }
}
