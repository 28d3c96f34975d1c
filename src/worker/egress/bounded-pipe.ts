import type { Readable, Writable } from 'node:stream'
import type { Release } from '../../lib/turns/semaphore.ts'
import { KEPT, type ConnectionMemory } from './connection-memory.ts'
import { RequestRefused } from './request-refused.ts'

type Options = {
  readonly memory: ConnectionMemory
  /** Is told if too much waits already. Both sides must then end. */
  readonly onFull: (refused: RequestRefused) => void
}

/** Pipes one stream into another, and reserves memory while the other reads more slowly. */
export function boundedPipe(from: Readable, to: Writable, { memory, onFull }: Options): void {
  let release: Release | null = null
  const free = (): void => {
    release?.()
    release = null
  }
  from.on('pause', () => {
    // The end of one side pauses the other too.
    if (from.closed || !to.writableNeedDrain) return
    try {
      release ??= memory.reserve(KEPT.stalledRelay)
    } catch (error) {
      if (!(error instanceof RequestRefused)) throw error
      onFull(error)
    }
  })
  from.on('resume', free).on('close', free)
  from.pipe(to)
}
