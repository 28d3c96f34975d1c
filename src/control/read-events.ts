import type { Caller } from '../domain/caller.ts'
import { decodeCursor, encodeCursor } from '../domain/cursor.ts'
import type { EventId } from '../domain/ids.ts'
import { Problem } from '../domain/problem.ts'
import { firstUuidOf } from '../lib/uuid.ts'
import * as events from '../store/events.ts'
import type { ControlDeps } from './deps.ts'

export type EventsInput = {
  readonly event_type: string | null
  /** Both inclusive. */
  readonly since: Date | null
  readonly until: Date | null
  readonly cursor: string | null
  readonly limit: number
}

export type { EventRow } from '../store/events.ts'

export type EventPage = { readonly items: readonly events.EventRow[]; readonly nextCursor: string | null }

/** How far an event's id may lie from its timestamp: ids of one process never go back, its clock may. */
const ID_SLACK_MS = 60_000

/** A page of the organization's audit events, the newest first. Throws `invalid_request` for a bad cursor. */
export async function listEvents(
  deps: Pick<ControlDeps, 'db'>,
  caller: Caller,
  input: EventsInput,
): Promise<EventPage> {
  const { event_type, since, until, cursor, limit } = input
  const filter: events.EventFilter = {
    event_type,
    since,
    until,
    fromId: since === null ? null : firstUuidOf(new Date(since.getTime() - ID_SLACK_MS)),
    toId: until === null ? null : firstUuidOf(new Date(until.getTime() + ID_SLACK_MS)),
    before: cursor === null ? null : decodeCursor('events', cursor),
  }
  const rows = await deps.db.asOrg(caller.org_id, (q) => events.page(q, caller.org_id, filter, limit + 1))
  const items = rows.slice(0, limit)
  const last = items.at(-1)
  return { items, nextCursor: rows.length > limit && last !== undefined ? encodeCursor('events', last.id) : null }
}

/** One event of the organization. Throws `event_not_found`. */
export async function getEvent(deps: Pick<ControlDeps, 'db'>, caller: Caller, id: EventId): Promise<events.EventRow> {
  const event = await deps.db.asOrg(caller.org_id, (q) => events.find(q, caller.org_id, id))
  if (event === null) throw new Problem('event_not_found')
  return event
}
