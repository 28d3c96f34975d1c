import { parseRange, RANGE_RULE, RANGES_MAX } from '../../domain/network/operator-denials.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import * as networkRanges from '../../store/orgs/network-ranges.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'

/** The ranges that are open for an organization. */
export function listNetworkRanges(deps: Pick<BaseDeps, 'db'>, { org_id }: OrgActor): Promise<readonly string[]> {
  return deps.db.asSystem((q) => networkRanges.find(q, org_id))
}

/**
 * Opens a range for an organization, for runs that start from now on. Its policies must still allow it. Throws
 * `invalid_request` for a text that is no range, and beyond `RANGES_MAX`. May be repeated.
 */
export async function allowNetworkRange(deps: WriteDeps, acting: OrgActor, text: string): Promise<void> {
  const range = requireRange(text)
  await changeRanges(deps, acting, {
    event_type: 'network_range_allowed',
    range,
    change: (ranges) => (ranges.includes(range) ? ranges : [...ranges, range]),
  })
}

/** Closes a range again, for runs that start from now on. Throws `invalid_request` if that range is not open. */
export async function disallowNetworkRange(deps: WriteDeps, acting: OrgActor, text: string): Promise<void> {
  const range = requireRange(text)
  await changeRanges(deps, acting, {
    event_type: 'network_range_disallowed',
    range,
    change: (ranges) => {
      if (ranges.includes(range)) return ranges.filter((one) => one !== range)
      throw invalidRequest('range', text, ranges.length === 0 ? 'nothing: no range is open' : ranges.join(', '))
    },
  })
}

function requireRange(text: string): string {
  const range = parseRange(text)
  if (range === null) throw invalidRequest('range', text, RANGE_RULE)
  return range
}

type RangeChange = {
  readonly event_type: 'network_range_allowed' | 'network_range_disallowed'
  readonly range: string
  readonly change: (ranges: readonly string[]) => readonly string[]
}

async function changeRanges(deps: WriteDeps, acting: OrgActor, { event_type, range, change }: RangeChange) {
  await deps.db.transaction('system', async (tx) => {
    await orgs.lock(tx, acting.org_id)
    const before = await networkRanges.find(tx, acting.org_id)
    const after = change(before)
    if (after.length === before.length) return
    if (after.length > RANGES_MAX) throw invalidRequest('range', range, `at most ${String(RANGES_MAX)} open ranges`)
    await networkRanges.save(tx, acting.org_id, after, deps.clock.now())
    await recordEvent(deps, tx, { ...acting, event_type, payload: { range } })
  })
}
