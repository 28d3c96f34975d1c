import type { Clock } from '../../../lib/clock.ts'

/**
 * The most addresses in the sets of one sandbox. A sandbox chooses names and their time to live, which may be years, and the kernel's
 * memory belongs to all sandboxes.
 */
const ELEMENTS_MAX = 16_384

/** The addresses in the packet filter's sets of one sandbox. */
export type TiedElements = {
  /**
   * Counts addresses, with their time to live in seconds, in each of the sets. False, and nothing is counted, if there would be too many.
   * What a set has already isn't counted again.
   */
  add(sets: readonly number[], tied: ReadonlyMap<string, number>): boolean
}

export function makeTiedElements(clock: Pick<Clock, 'monotonicMs'>): TiedElements {
  const ends = new Map<string, number>()

  function removeExpired(nowMs: number): void {
    for (const [element, endMs] of ends) if (endMs <= nowMs) ends.delete(element)
  }

  return {
    add(sets, tied) {
      const nowMs = clock.monotonicMs()
      const elements = sets.flatMap((set) =>
        [...tied].map(([address, secs]) => [`${String(set)} ${address}`, secs] as const),
      )
      const isFull = (): boolean => ends.size + elements.filter(([element]) => !ends.has(element)).length > ELEMENTS_MAX
      if (isFull()) removeExpired(nowMs)
      if (isFull()) return false
      for (const [element, secs] of elements) ends.set(element, nowMs + secs * 1_000)
      return true
    },
  }
}
