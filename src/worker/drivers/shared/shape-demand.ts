import type { Clock } from '../../../lib/clock.ts'

/** What runs have in common that may take the same warm sandbox. Two runs have the same shape if and only if they have the same key. */
type Shape = { readonly key: string }

/** How often each shape was asked for lately. */
export type ShapeDemand<Of extends Shape> = {
  /** Counts a start of this shape. */
  note(shape: Of): void
  /** Ignores the earlier starts of a shape. */
  forget(shape: Of): void
  /**
   * How many warm sandboxes of which shapes are worth having, `most` at most in all. A shape gets its share of the starts, but no
   * more than it had starts lately.
   */
  wanted(most: number): readonly { readonly shape: Of; readonly count: number }[]
}

/** After this time, a start counts half. */
const HALF_LIFE_MS = 300_000
/** A shape is forgotten below this weight: a single start after 10 minutes. */
const LEAST_WEIGHT = 0.25
/** The most shapes that are remembered. */
const SHAPES_KEPT = 64

type Counted<Of> = { readonly shape: Of; readonly weight: number; readonly atMs: number }

/** Makes a demand that has seen no start. */
export function makeShapeDemand<Of extends Shape>(clock: Pick<Clock, 'monotonicMs'>): ShapeDemand<Of> {
  const byKey = new Map<string, Counted<Of>>()
  const weightOf = ({ weight, atMs }: Counted<Of>): number =>
    weight * 2 ** ((atMs - clock.monotonicMs()) / HALF_LIFE_MS)

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
