import { SANDBOX_IDS, type IdRange } from '../../../../domain/workers/id-range.ts'

/**
 * Allocates ranges of `SANDBOX_IDS` ids of the host. A range is named by its first id. No two allocated ranges overlap,
 * and none reaches beyond the range of the setting.
 */
export type IdRanges = {
  /** Allocates a free range. Returns null if every range is held. */
  allocate(): number | null
  /** Frees a range. Does nothing for a range that is not held. */
  free(first: number): void
  /** How many ranges are free. */
  readonly freeCount: number
}

type IdRangesInput = {
  readonly range: IdRange
  /** The ranges that recorded runs hold. An earlier setting may have placed them differently. */
  readonly held: readonly number[]
  /** The index of the range to try first. Workers on one machine with different starts rarely use the same range. */
  readonly startAt: number
}

/** Creates an allocator. It allocates the first free range from its start on, so a freed range is soon used again. */
export function makeIdRanges({ range, held, startAt }: IdRangesInput): IdRanges {
  const count = Math.floor((range.last - range.first + 1) / SANDBOX_IDS)
  const indexOf = (first: number): number => (first - range.first) / SANDBOX_IDS
  // A range that an earlier setting placed between two of ours overlaps both. They stay taken until the next start.
  const taken = new Set(held.flatMap((first) => [Math.floor(indexOf(first)), Math.ceil(indexOf(first))]))
  return {
    allocate() {
      for (let tries = 0; tries < count; tries++) {
        const index = (startAt + tries) % count
        if (taken.has(index)) continue
        taken.add(index)
        return range.first + index * SANDBOX_IDS
      }
      return null
    },
    free(first) {
      taken.delete(indexOf(first))
    },
    get freeCount() {
      return Math.max(0, count - taken.size)
    },
  }
}
