import type { Uuids } from '../../lib/uuid.ts'

/** Identifiers that share one drawn UUID: they differ in its last three digits. */
const IDS_PER_DRAW = 4096

/**
 * Request ids: UUIDs of which one in 4,096 is drawn and the others count up from it. Drawing each took an eighth of the
 * time of the cheapest request (profiled in 2026-11), and a request's id guards nothing.
 */
export function makeRequestIds(uuids: Uuids): Uuids {
  let stem = ''
  let used = IDS_PER_DRAW
  return {
    next() {
      if (used === IDS_PER_DRAW) {
        stem = uuids.next().slice(0, -3)
        used = 0
      }
      const id = stem + used.toString(16).padStart(3, '0')
      used += 1
      return id
    },
  }
}
