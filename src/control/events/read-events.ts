import type { Caller } from '../../domain/orgs/caller.ts'
import type { EventId } from '../../domain/ids.ts'
import { typesOfCategory } from '../../domain/events/event-types.ts'
import { decodeCursor, encodeCursor } from '../../domain/requests/cursor.ts'
import { Problem } from '../../domain/problem.ts'
import { minUuidAt } from '../../lib/uuid.ts'
import * as eventPages from '../../store/events/event-pages.ts'
import * as events from '../../store/events/events.ts'
import type { BaseDeps } from '../deps.ts'
import type { Page, PageInput } from '../requests/page.ts'

/** The events that a request asks for. Null or absent: any. */
export type EventsInput = PageInput &
  Pick<eventPages.EventFilter, 'event_type' | 'since' | 'until'> &
  Partial<Pick<eventPages.EventFilter, 'category' | 'sandbox_id' | 'actor'>>

export type { EventRow } from '../../store/events/events.ts'

/**
 * The maximum difference between the time in an event's id and the event's timestamp, in milliseconds. They differ
 * because the ids of a process always increase, while its clock may step back.
 */
const ID_SLACK_MS = 60_000

/**
 * A page of the organization's audit events, newest first. More pages may follow a page with fewer than `limit` items.
 * Throws `invalid_request` for a bad cursor.
 */
export async function listEvents(
  deps: Pick<BaseDeps, 'db'>,
  { org_id }: Pick<Caller, 'org_id'>,
  input: EventsInput,
): Promise<Page<events.EventRow>> {
  return readEvents(input, (filter, count) => deps.db.asOrg(org_id, (q) => eventPages.page(q, org_id, filter, count)))
}

/** A page of the audit events of all organizations, as `listEvents`. */
export async function listAllEvents(deps: Pick<BaseDeps, 'db'>, input: EventsInput): Promise<Page<events.EventRow>> {
  return readEvents(input, (filter, count) => deps.db.asSystem((q) => eventPages.page(q, null, filter, count)))
}

async function readEvents(
  { cursor, limit, ...asked }: EventsInput,
  read: (filter: eventPages.EventFilter, count: number) => Promise<eventPages.EventRows>,
): Promise<Page<events.EventRow>> {
  const { event_type, category = null, sandbox_id = null, actor = null, since, until } = asked
  if (event_type !== null && category !== null && !typesOfCategory(category).some((type) => type === event_type))
    return { items: [], nextCursor: null }
  const filter = {
    event_type,
    sandbox_id,
    actor,
    since,
    until,
    category: event_type === null ? category : null, // a type has one category
    fromId: since === null ? null : minUuidAt(new Date(since.getTime() - ID_SLACK_MS)),
    toId: until === null ? null : minUuidAt(new Date(until.getTime() + ID_SLACK_MS)),
    before: cursor === null ? null : decodeCursor('events', cursor),
  }
  const { rows, nextBefore } = await read(filter, limit + 1)
  const items = rows.slice(0, limit)
  const last = rows.length > limit ? (items.at(-1)?.id ?? null) : nextBefore
  return { items, nextCursor: last === null ? null : encodeCursor('events', last) }
}

/** An event of the organization. Throws `event_not_found`. */
export async function getEvent(deps: Pick<BaseDeps, 'db'>, caller: Caller, id: EventId): Promise<events.EventRow> {
  const event = await deps.db.asOrg(caller.org_id, (q) => events.find(q, caller.org_id, id))
  if (event === null) throw new Problem('event_not_found')
  return event
}
