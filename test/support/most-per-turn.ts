/**
 * Counts what comes in each turn of the event loop. `most` returns the most of one turn, and `total` what came in all. A turn ends before all other immediates, so
 * what these do is counted to the next one.
 */
export function countPerTurn(): {
  readonly count: (more?: number) => void
  readonly most: () => number
  readonly total: () => number
} {
  let most = 0
  let total = 0
  let current = 0
  const begin = (): void => {
    current = 0
    setImmediate(begin).unref()
  }
  begin()
  return {
    count(more = 1) {
      current += more
      total += more
      most = Math.max(most, current)
    },
    most: () => most,
    total: () => total,
  }
}
