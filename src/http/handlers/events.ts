import type { EVENT_OPERATIONS } from '../../contract/events/operations.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { LAST_EVENT_ID_HEADER } from '../../contract/streams/operations.ts'
import { getEvent, listEvents } from '../../control/events/read-events.ts'
import { streamEvents, type StreamedEvent } from '../../control/streams/stream-events.ts'
import { formatPosition } from '../../domain/events/event-position.ts'
import { isEventType, type EventCategory, type EventType } from '../../domain/events/event-types.ts'
import { asId, type EventId } from '../../domain/ids.ts'
import { SYSTEM_ACTOR_KEYS } from '../../domain/orgs/caller.ts'
import { isUuid } from '../../lib/uuid.ts'
import {
  pageInput, parseInstant, renderPage, refuseField, taggedReply, type Handler, type HandlerFactory,
} from './handler.ts' // prettier-ignore
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of audit events. */
export function makeEventHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof EVENT_OPERATIONS, Handler> {
  return {
    list_events: handler(OPERATIONS.list_events, async ({ query }, { caller }) => {
      const input = { ...readFilter(query), ...pageInput(query) }
      return renderPage(await call(listEvents, caller, input), (event) => JSON.stringify(event))
    }),
    stream_events: handler(OPERATIONS.stream_events, async ({ query }, { caller, headers, signal }) => {
      const seen = headers[LAST_EVENT_ID_HEADER]
      const after = (Array.isArray(seen) ? seen[0] : seen) ?? query.after ?? null
      const asked = { filter: readFilter(query), after: after === '' ? null : after, signal: signal() }
      return { events: renderEvents(await call(streamEvents, caller, asked)) }
    }),
    get_event: handler(OPERATIONS.get_event, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getEvent, caller, asId<EventId>(params.event_id.toLowerCase())))),
    ),
  }
}

type FilterQuery = {
  readonly event_type?: string
  readonly category?: EventCategory
  readonly sandbox_id?: string
  readonly actor?: string
  readonly since?: string
  readonly until?: string
}

function readFilter({ event_type, category, sandbox_id, ...query }: FilterQuery) {
  const { actor = null, since, until } = query
  return {
    event_type: event_type === undefined ? null : readEventType('query.event_type', event_type),
    category: category ?? null,
    sandbox_id: sandbox_id?.toLowerCase() ?? null,
    actor: actor === null ? null : readActor('query.actor', actor),
    since: parseInstant(since),
    until: parseInstant(until),
  }
}

async function* renderEvents(streamed: AsyncIterable<StreamedEvent>): AsyncGenerator<string> {
  for await (const { event, position } of streamed) {
    const { id, org_id, timestamp, category, event_type, actor, payload } = event
    const data = JSON.stringify({ id, org_id, timestamp, category, event_type, actor, payload })
    yield `id: ${formatPosition(position)}\nevent: event\ndata: ${data}\n\n`
  }
}

/** Checks a type by which events are filtered. Throws `invalid_request`, because a misspelt type matches nothing for ever. */
export function readEventType(field: string, type: string): EventType {
  return isEventType(type) ? type : refuseField(field, type, 'a type of audit events, such as sandbox_failed')
}

/** Checks an actor by which events are filtered. Throws `invalid_request`. */
export function readActor(field: string, actor: string): string {
  if (isUuid(actor)) return actor.toLowerCase()
  if (SYSTEM_ACTOR_KEYS.includes(actor)) return actor
  return refuseField(field, actor, `the id of an API key or a user, or one of ${SYSTEM_ACTOR_KEYS.join(', ')}`)
}
