import type { Random } from '../../src/lib/random.ts'

/** Choices that follow from a seed alone. */
export type Seeded = {
  /** A whole number in `[0, below)`. */
  below(below: number): number
  /** True in `percent` of a hundred cases. */
  chance(percent: number): boolean
  /** One of them; throws when there is none. */
  pick<T>(from: readonly T[]): T
  /** One of them by weight; throws when no weight is above zero. */
  weighted<T>(from: readonly (readonly [weight: number, value: T])[]): T
  /** Bytes for identifiers and names of the code under test. */
  readonly random: Random
}

/** Makes choices from a seed: SplitMix64 cut to 32 bits, which any two neighbouring seeds part at once. */
export function makeSeeded(seed: number): Seeded {
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
