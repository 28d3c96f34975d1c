/** Bytes of bodies that the connections of one sandbox may keep. A body that doesn't fit is refused, so that memory is bounded. */
export type BodyBudget = {
  /** Returns whether the bytes were free; they then belong to the caller until it releases them. */
  readonly acquire: (bytes: number) => boolean
  readonly release: (bytes: number) => void
  /** How long a body that is kept may be without more bytes, before its connection is closed. */
  readonly idleLimitMs: number
}

type Options = {
  /** Bytes that all sandboxes together may keep. */
  readonly capacity: number
  readonly idleLimitMs: number
}

/**
 * Makes the budgets of sandboxes. A sandbox may keep as much as stays free: alone half of the capacity, beside another one that
 * keeps all it may, a third. So none can use up what others need.
 */
export function makeBodyBudgets({ capacity, idleLimitMs }: Options): (sandbox: string) => BodyBudget {
  const kept = new Map<string, number>()
  let free = capacity

  function change(sandbox: string, bytes: number): void {
    const own = (kept.get(sandbox) ?? 0) + bytes
    free -= bytes
    if (own === 0) kept.delete(sandbox)
    else kept.set(sandbox, own)
  }

  return (sandbox) => ({
    acquire(bytes) {
      if ((kept.get(sandbox) ?? 0) + bytes > free - bytes) return false
      change(sandbox, bytes)
      return true
    },
    release(bytes) {
      change(sandbox, -bytes)
    },
    idleLimitMs,
  })
}
