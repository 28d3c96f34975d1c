import type { Readable } from 'node:stream'
import { once } from '../turns/once.ts'

/**
 * Lets several parties pause a stream. The returned function pauses it, and returns another one that lets it go on. The stream goes on once
 * all who paused it have called theirs. Further calls of one do nothing.
 */
export function makeStreamHolds(stream: Readable): () => () => void {
  let holds = 0
  return () => {
    holds += 1
    stream.pause()
    return once(() => {
      holds -= 1
      if (holds === 0 && !stream.destroyed) stream.resume()
    })
  }
}
