/** A fixed number of places; whoever finds none is refused at once, not queued. */
export interface Slots {
  /** Takes a place, to be given back by calling the answer once; null when none is free. */
  take(): (() => void) | null
  readonly taken: number
}

/** Makes `count` places. */
export function makeSlots(count: number): Slots {
  let taken = 0
  return {
    take() {
      if (taken >= count) return null
      taken += 1
      let isHeld = true
      return () => {
        if (isHeld) taken -= 1
        isHeld = false
      }
    },
    get taken() {
      return taken
    },
  }
}
