/**
 * Counts what comes in each turn of the event loop. `most` returns the most of one turn. A turn ends before all other immediates, so
 * what these do is counted to the next one.
 */
export function countPerTurn(): { readonly count: (more?: number) => void; readonly most: () => number } {
  let most = 0
  let current = 0
  const begin = (): void => {
    current = 0
    setImmediate(begin).unref()
  }
  begin()
  return {
    count(more = 1) {
      current += more
      most = Math.max(most, current)
    },
    most: () => most,
  }
}
