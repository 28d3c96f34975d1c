/** Counts what comes in each turn of the event loop. `most` returns the most of one turn. */
export function countPerTurn(): { readonly count: (more?: number) => void; readonly most: () => number } {
  let most = 0
  let current = 0
  return {
    count(more = 1) {
      if (current === 0) setImmediate(() => void (current = 0))
      current += more
      most = Math.max(most, current)
    },
    most: () => most,
  }
}
