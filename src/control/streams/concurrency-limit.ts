import { Problem } from '../../domain/problem.ts'

/** Places for something that lasts, counted by this process; `taken` counts all. */
export type ConcurrencyLimit<Of> = {
  /**
   * Takes a place, or as many as `weight` says, to be given back by calling the answer, which may be repeated. Throws
   * `rate_limited`, naming the limit.
   */
  acquire(of: Of, weight?: number): () => void
  readonly permitsInUse: number
}

/** The most places that may be taken at once by all that have one key, such as an organization. */
export type KeyedLimit<Of> = {
  /** Its name, for the refusal. */
  readonly name: string
  /** The setting that changes it. */
  readonly variable: string
  readonly max: number
  readonly keyOf: (of: Of) => string
}

/** Makes places within several limits at once, looked at in their order. `advice` says what a refused client may do. */
export function makeConcurrencyLimit<Of>(limits: readonly KeyedLimit<Of>[], advice: string): ConcurrencyLimit<Of> {
  const counted = limits.map((limit) => ({ limit, counts: new Map<string, number>() }))
  let taken = 0
  return {
    acquire(of, weight = 1) {
      const shares = counted.map(({ limit, counts }) => ({ limit, counts, key: limit.keyOf(of) }))
      for (const { limit, counts, key } of shares)
        refuseAtLimit(limit, { current: counts.get(key) ?? 0, weight }, advice)
      const change = (by: number): void => {
        taken += by
        for (const { counts, key } of shares) {
          const count = (counts.get(key) ?? 0) + by
          if (count === 0) counts.delete(key)
          else counts.set(key, count)
        }
      }
      change(weight)
      let isHeld = true
      return () => {
        if (isHeld) change(-weight)
        isHeld = false
      }
    },
    get permitsInUse() {
      return taken
    },
  }
}

/** Seconds after which a refused client may try again: what takes places lasts from a moment to days. */
const RETRY_AFTER_SECS = 1

type Named = Pick<KeyedLimit<unknown>, 'name' | 'variable' | 'max'>

function refuseAtLimit(
  { name, variable, max }: Named,
  { current, weight }: { readonly current: number; readonly weight: number },
  advice: string,
): void {
  if (current + weight <= max) return
  const how_to_change = `${advice}; whoever runs this installation can change it: ${variable}`
  throw new Problem('rate_limited', {
    message: `too many requests: ${name} is ${String(max)} and ${String(current)} are taken; ${how_to_change}`,
    details: { limit: name, max, current, how_to_change },
    retryAfterSeconds: RETRY_AFTER_SECS,
  })
}
