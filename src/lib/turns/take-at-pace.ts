import type { Pace } from './piece-pacer.ts'

export type Taking<Piece> = {
  readonly pace: Pace
  /** Takes a piece. Returns how many pieces it counts as. */
  readonly take: (piece: Piece) => number
  /** Stops the source while pieces wait. Returns the function that lets it go on. */
  readonly hold: () => () => void
  /** Whether nothing more is to be taken. */
  readonly isOver: () => boolean
  /** Called with the error of a piece. Those after it are dropped. */
  readonly onFailure: (error: unknown) => void
}

/** Takes pieces in order, as many in a turn of the event loop as their pace allows. While the others wait, the source is held. */
export function takeAtPace<Piece>(pieces: Iterator<Piece>, taking: Taking<Piece>): void {
  const { pace, take, hold, isOver, onFailure } = taking
  try {
    for (let mayTake = !pace.isTurnFull(); mayTake;) {
      const next = pieces.next()
      if (next.done === true) return
      mayTake = pace.count(take(next.value))
    }
  } catch (error) {
    onFailure(error)
    return
  }
  const release = hold()
  void pace.wait(isOver).then(() => {
    if (!isOver()) takeAtPace(pieces, taking)
    release()
  })
}
