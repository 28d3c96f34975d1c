import type { Caller } from '../../domain/orgs/caller.ts'
import type { EventId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { minUuidAt } from '../../lib/uuid.ts'
import * as events from '../../store/events/events.ts'
import type { BaseDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'

export type EventsInput = PageInput & {
  readonly event_type: string | null
  /** Both `since` and `until` are inclusive. */
  readonly since: Date | null
  readonly until: Date | null
}

export type { EventRow } from '../../store/events/events.ts'

/**
 * The maximum difference between the time in an event's id and the event's timestamp, in milliseconds. They differ
 * because the ids of a process always increase, while its clock may step back.
 */
const ID_SLACK_MS = 60_000

/** A page of the organization's audit events, newest first. Throws `invalid_request` for a bad cursor. */
export async function listEvents(
  deps: Pick<BaseDeps, 'db'>,
  caller: Caller,
  input: EventsInput,
): Promise<Page<events.EventRow>> {
  const { event_type, since, until } = input
  const range = {
    event_type,
    since,
    until,
    fromId: since === null ? null : minUuidAt(new Date(since.getTime() - ID_SLACK_MS)),
    toId: until === null ? null : minUuidAt(new Date(until.getTime() + ID_SLACK_MS)),
  }
  const { org_id } = caller
  return readPage('events', input, (before, count) =>
    deps.db.asOrg(org_id, (q) => events.page(q, org_id, { ...range, before }, count)),
  )
}

/** An event of the organization. Throws `event_not_found`. */
export async function getEvent(deps: Pick<BaseDeps, 'db'>, caller: Caller, id: EventId): Promise<events.EventRow> {
  const event = await deps.db.asOrg(caller.org_id, (q) => events.find(q, caller.org_id, id))
  if (event === null) throw new Problem('event_not_found')
  return event
}
