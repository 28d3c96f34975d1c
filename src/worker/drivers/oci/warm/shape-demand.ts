import type { Clock } from '../../../../lib/clock.ts'
import type { WarmShape } from './warm-shape.ts'

/** How often each shape was asked for lately. */
export type ShapeDemand = {
  /** Counts a start of this shape. */
  note(shape: WarmShape): void
  /** Ignores the earlier starts of a shape. */
  forget(shape: WarmShape): void
  /**
   * How many warm sandboxes of which shapes are worth having, `most` at most in all. A shape gets its share of the starts, but no
   * more than it had starts lately.
   */
  wanted(most: number): readonly { readonly shape: WarmShape; readonly count: number }[]
}

/** After this time, a start counts half. */
const HALF_LIFE_MS = 300_000
/** A shape is forgotten below this weight: a single start after 10 minutes. */
const LEAST_WEIGHT = 0.25
/** The most shapes that are remembered. */
const SHAPES_KEPT = 64

type Counted = { readonly shape: WarmShape; readonly weight: number; readonly atMs: number }

export function makeShapeDemand(clock: Pick<Clock, 'monotonicMs'>): ShapeDemand {
  const byKey = new Map<string, Counted>()
  const weightOf = ({ weight, atMs }: Counted): number => weight * 2 ** ((atMs - clock.monotonicMs()) / HALF_LIFE_MS)

  const forgetOld = (): void => {
    for (const [key, counted] of byKey) if (weightOf(counted) < LEAST_WEIGHT) byKey.delete(key)
    const lightest = [...byKey].toSorted(([, one], [, other]) => weightOf(one) - weightOf(other))
    for (const [key] of lightest.slice(0, Math.max(0, byKey.size - SHAPES_KEPT))) byKey.delete(key)
  }
  return {
    note(shape) {
      const counted = byKey.get(shape.key)
      const weight = (counted === undefined ? 0 : weightOf(counted)) + 1
      byKey.set(shape.key, { shape, weight, atMs: clock.monotonicMs() })
      forgetOld()
    },
    forget: ({ key }) => void byKey.delete(key),
    wanted(most) {
      forgetOld()
      const shares = [...byKey.values()].map((counted) => ({
        shape: counted.shape,
        weight: weightOf(counted),
        count: 0,
      }))
      for (let left = most; left > 0; left--) {
        // The next one goes to the shape with the most starts for each that it has (D'Hondt).
        const [next] = shares
          .filter(({ weight, count }) => count < Math.ceil(weight))
          .toSorted((one, other) => other.weight / (other.count + 1) - one.weight / (one.count + 1))
        if (next === undefined) break
        next.count += 1
      }
      return shares.filter(({ count }) => count > 0).map(({ shape, count }) => ({ shape, count }))
    },
  }
}
