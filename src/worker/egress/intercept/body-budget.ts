/** Bytes of bodies that all connections together may buffer. A body that doesn't fit is refused, so that memory is bounded. */
export type BodyBudget = {
  /** Returns whether the bytes were free; they then belong to the caller until it releases them. */
  readonly acquire: (bytes: number) => boolean
  readonly release: (bytes: number) => void
}

export function makeBodyBudget(capacity: number): BodyBudget {
  let free = capacity
  return {
    acquire(bytes) {
      if (bytes > free) return false
      free -= bytes
      return true
    },
    release(bytes) {
      free += bytes
    },
  }
}
