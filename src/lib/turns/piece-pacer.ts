import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { makeFairSemaphore } from './fair-semaphore.ts'

/**
 * Paces streams that arrive in very small pieces, such as frames of a byte. One read of 64 KiB has ten thousand of them, and each costs
 * the event loop as much as a large one.
 */
export type PiecePacer = {
  /** Makes the pace of one stream. Streams with the same key share their turns. */
  paceOf(key: string): Pace
}

export type Pace = {
  /** Counts pieces, one by default. Returns whether another one may be taken in this turn of the event loop. If not, `wait`. */
  readonly count: (pieces?: number) => boolean
  /** Whether all streams together have taken as many as a turn may have. */
  readonly isTurnFull: () => boolean
  /**
   * Resolves when the stream may go on: in the next turn, if only all together were too many. With a busy server, streams with a piece each
   * would otherwise wait for each other. A stream that is gone takes no turn of its key.
   */
  readonly wait: (isGone?: () => boolean) => Promise<void>
}

/** How many pieces are taken in one turn of the event loop: of one stream, and of all. */
const TURN_PIECES = { ofOne: 256, ofAll: 512 }
/** How long after a stream that waited the next one goes on, in milliseconds. */
const REST_MS = 10

/** Makes the pacer of a process. Of the streams that had too many pieces in a turn, one goes on every `REST_MS`, keys in turn. */
export function makePiecePacer(restMs = REST_MS): PiecePacer {
  const waiting = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  let turn = 0
  let isTurnCounted = false
  let ofAll = 0

  const countTurn = (): void => {
    if (isTurnCounted) return
    isTurnCounted = true
    void setImmediate().then(() => {
      isTurnCounted = false
      turn += 1
      ofAll = 0
    })
  }

  return {
    paceOf(key) {
      let ofOne = 0
      let latest = -1
      return {
        count(pieces = 1) {
          countTurn()
          if (latest !== turn) ofOne = 0
          latest = turn
          ofOne += pieces
          ofAll += pieces
          return ofOne < TURN_PIECES.ofOne && ofAll < TURN_PIECES.ofAll
        },
        isTurnFull: () => isTurnCounted && ofAll >= TURN_PIECES.ofAll,
        async wait(isGone = () => false) {
          if (latest !== turn || ofOne < TURN_PIECES.ofOne) {
            await setImmediate()
            return
          }
          const release = await waiting.acquire(key)
          if (!isGone()) await sleep(restMs, undefined, { ref: false })
          release?.()
        },
      }
    },
  }
}
