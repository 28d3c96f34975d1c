import type { Duplex } from 'node:stream'

/** Ends a stream on which nothing moves. */
export type IdleTimeout = {
  /** Something moved. */
  readonly touch: () => void
  /** Does work during which nothing needs to move. */
  during<T>(work: () => Promise<T>): Promise<T>
}

/** Destroys `stream` once it was neither touched nor worked for in `idleMs`; the limit ends with the stream. */
export function makeIdleTimeout(stream: Duplex, idleMs: number): IdleTimeout {
  let working = 0
  const timer = setTimeout(() => {
    if (working > 0) timer.refresh()
    else stream.destroy(new Error(`nothing moved for ${String(idleMs)} ms`))
  }, idleMs)
  const touch = (): void => {
    if (!stream.destroyed) timer.refresh()
  }
  stream.on('data', touch)
  stream.once('close', () => {
    clearTimeout(timer)
  })
  return {
    touch,
    async during(work) {
      working += 1
      try {
        return await work()
      } finally {
        working -= 1
        touch()
      }
    },
  }
}
