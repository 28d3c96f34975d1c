import { describeSeen, type Refusal } from '../refusal.ts'
import { splitAtMidnights, type TimeRange } from './metering.ts'

/**
 * How far back usage is complete. `runs`: runs that ended before this UTC midnight may be deleted; only sums of whole days
 * are left of them. `usage`: before this UTC midnight, only the sums of each organization are left. Null: nothing is
 * deleted.
 */
export type Horizons = { readonly runs: Date | null; readonly usage: Date | null }

/** What a report lists: sums of the organization, or the usage of each sandbox or of each volume. */
export type ReportKind = 'org' | 'sandboxes' | 'volumes'

/**
 * The reason why a report can't be made: rows that it needs may be deleted. Null if it can. Whole days always have their
 * sums of the organization. A part of a day needs the runs and intervals themselves.
 */
export function refuseDeletedUsage(range: TimeRange, kind: ReportKind, horizons: Horizons): Refusal | null {
  const { since, until } = range
  const { usage } = horizons
  if (kind !== 'org' && usage !== null && since < usage) return refusal('query.since', since, notBefore(usage))
  const partsFrom = kind === 'volumes' ? usage : later(horizons.runs, usage)
  if (partsFrom === null) return null
  for (const part of splitAtMidnights(range).parts) {
    if (part.since >= partsFrom) continue
    const isHead = part.since.getTime() === since.getTime()
    const accepted = `midnight UTC, or ${notBefore(partsFrom)}: only sums of whole days are kept from before`
    return isHead ? refusal('query.since', since, accepted) : refusal('query.until', until, accepted)
  }
  return null
}

function refusal(field: 'query.since' | 'query.until', seen: Date, accepted: string): Refusal {
  return { code: 'invalid_request', field, seen: describeSeen(seen.toISOString()), accepted }
}

function notBefore(horizon: Date): string {
  return `an instant from ${horizon.toISOString()} on`
}

function later(one: Date | null, other: Date | null): Date | null {
  if (one === null || other === null) return one ?? other
  return one > other ? one : other
}
