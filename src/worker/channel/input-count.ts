/** Counts data on their way into a sandbox, and stops the client while there are too many. */
export type InputBudget = {
  /** Counts bytes until the function that it returns is called, which may be repeated. */
  add(bytes: number): () => void
  /** The client is stopped no more for what was counted. */
  close(): void
}

/** More than `maxBytes` stop the client by `hold`, which answers how to let it go on, until there are half as many. */
export function makeInputBudget(hold: () => () => void, maxBytes: number): InputBudget {
  let bytes = 0
  let release: (() => void) | null = null

  const letGo = (): void => {
    release?.()
    release = null
  }
  return {
    add(more) {
      let isCounted = true
      bytes += more
      if (bytes > maxBytes) release ??= hold()
      return () => {
        if (!isCounted) return
        isCounted = false
        bytes -= more
        if (bytes <= maxBytes / 2) letGo()
      }
    },
    close: letGo,
  }
}
