import { Problem } from '../../domain/problem.ts'

/** Places for something that lasts, counted by this process; `taken` counts all. */
export type Places<Of> = {
  /**
   * Takes a place, or as many as `weight` says, to be given back by calling the answer, which may be repeated. Throws
   * `rate_limited`, naming the limit.
   */
  take(of: Of, weight?: number): () => void
  readonly taken: number
}

/** The most places that may be taken at once by all that have one key, such as an organization. */
export type PlaceLimit<Of> = {
  /** Its name, for the refusal. */
  readonly name: string
  /** The setting that changes it. */
  readonly variable: string
  readonly max: number
  readonly keyOf: (of: Of) => string
}

/** Makes places within several limits at once, looked at in their order. `advice` says what a refused client may do. */
export function makePlaces<Of>(limits: readonly PlaceLimit<Of>[], advice: string): Places<Of> {
  const counted = limits.map((limit) => ({ limit, counts: new Map<string, number>() }))
  let taken = 0
  return {
    take(of, weight = 1) {
      const shares = counted.map(({ limit, counts }) => ({ limit, counts, key: limit.keyOf(of) }))
      for (const { limit, counts, key } of shares) refuseFull(limit, { current: counts.get(key) ?? 0, weight }, advice)
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
    get taken() {
      return taken
    },
  }
}

/** Seconds after which a refused client may try again: what takes places lasts from a moment to days. */
const RETRY_AFTER_SECS = 1

type Named = Pick<PlaceLimit<unknown>, 'name' | 'variable' | 'max'>

function refuseFull(
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
