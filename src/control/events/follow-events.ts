import type { OrgId } from '../../domain/ids.ts'
import { PAGE_MAX } from '../../domain/requests/request-bounds.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import type { BaseDeps } from '../deps.ts'
import { listAllEvents, listEvents, type EventRow, type EventsInput } from './read-events.ts'

/** The events that an operator asks for. `org_id` null: of all organizations. */
export type OperatorEvents = Omit<EventsInput, 'cursor' | 'limit'> & { readonly org_id: OrgId | null }

type ReadDeps = Pick<BaseDeps, 'db'>

/** The latest events that match, the oldest first; at most `limit`. */
export async function latestEvents(deps: ReadDeps, asked: OperatorEvents, limit: number): Promise<readonly EventRow[]> {
  const found: EventRow[] = []
  for await (const page of pagesOf(deps, asked)) {
    found.push(...page)
    if (found.length >= limit) break
  }
  return found.slice(0, limit).toReversed()
}

async function* pagesOf(deps: ReadDeps, { org_id, ...filter }: OperatorEvents): AsyncGenerator<readonly EventRow[]> {
  for (let cursor: string | null = null; ;) {
    const input: EventsInput = { ...filter, cursor, limit: PAGE_MAX }
    const page = await (org_id === null ? listAllEvents(deps, input) : listEvents(deps, { org_id }, input))
    yield page.items
    cursor = page.nextCursor
    if (cursor === null) return
  }
}

/** How often new events are looked for. */
const POLL_MS = 1_000

/**
 * How far back each look goes. An event's id and time are made before its commit, so an event may appear after later ones.
 * A transaction takes at most as long as its statements, and the clocks of server processes differ little.
 */
const OVERLAP_MS = 60_000

/** Yields the events that are committed after `known`, as they appear, until the signal aborts. */
export async function* followEvents(
  deps: ReadDeps & Pick<BaseDeps, 'clock'>,
  asked: OperatorEvents,
  { known, signal }: { readonly known: readonly EventRow[]; readonly signal: AbortSignal },
): AsyncGenerator<readonly EventRow[]> {
  const oldest = known[0]?.timestamp ?? null // `known` has every later event
  let seen = new Map(known.map(({ id, timestamp }) => [id, timestamp]))
  while (!signal.aborted) {
    await interruptibleSleep(deps.clock, POLL_MS, signal)
    if (signal.aborted) return
    const from = new Date(deps.clock.now().getTime() - OVERLAP_MS)
    const fresh: EventRow[] = []
    for await (const page of pagesOf(deps, { ...asked, since: from }))
      fresh.push(...page.filter(({ id, timestamp }) => !seen.has(id) && (oldest === null || timestamp > oldest)))
    for (const { id, timestamp } of fresh) seen.set(id, timestamp)
    seen = new Map([...seen].filter(([, timestamp]) => timestamp >= from))
    if (fresh.length > 0) yield fresh.toReversed()
  }
}
