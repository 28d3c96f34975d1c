/** Makes a function whose callers, while it is at work, get the result of that work: however many ask, it is done once at a time. */
export function shareWork<Result>(work: () => Promise<Result>): () => Promise<Result> {
  let underWay: Promise<Result> | null = null
  return () => {
    underWay ??= work().finally(() => {
      underWay = null
    })
    return underWay
  }
}
