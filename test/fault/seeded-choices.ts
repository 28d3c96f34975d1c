import type { Random } from '../../src/lib/random.ts'

/** Random choices that depend on the seed alone. */
export type SeededChoices = {
  /** An integer in `[0, below)`. */
  below(below: number): number
  /** True with a probability of `percent`. */
  chance(percent: number): boolean
  /** One element of `from`, all equally likely. Throws if `from` is empty. */
  pick<T>(from: readonly T[]): T
  /** One value of `from`, with a probability in proportion to its weight. Throws if no weight is above zero. */
  weighted<T>(from: readonly (readonly [weight: number, value: T])[]): T
  /** Random bytes for the code under test. */
  readonly random: Random
}

/**
 * Creates the choices of a seed, by SplitMix64 reduced to 32 bits. Seeds 1 and 2 differ already in their first choices.
 */
export function makeSeededChoices(seed: number): SeededChoices {
  let state = Math.imul(seed + 1, 0x9e3779b1) >>> 0
  const next = (): number => {
    state = (state + 0x9e3779b9) >>> 0
    let mixed = state
    mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b)
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35)
    return (mixed ^ (mixed >>> 16)) >>> 0
  }
  const below = (limit: number): number => Math.floor((next() / 0x1_0000_0000) * limit)
  return {
    below,
    chance: (percent) => below(100) < percent,
    pick(from) {
      const one = from[below(from.length)]
      if (one === undefined) throw new Error('there is nothing to pick from')
      return one
    },
    weighted(from) {
      const sum = from.reduce((total, [weight]) => total + weight, 0)
      let left = below(sum)
      for (const [weight, value] of from) {
        if (left < weight) return value
        left -= weight
      }
      throw new Error('there is nothing to pick from')
    },
    random: {
      bytes(count) {
        const drawn = Buffer.alloc(count)
        for (let at = 0; at < count; at++) drawn[at] = next() & 0xff
        return drawn
      },
    },
  }
}
