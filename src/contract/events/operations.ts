import { EventIdParams, EventPage, EventReply, ListEventsQuery } from './events.ts'
import { jsonReply, taggedReply, defineOperation, type Operation } from '../operation.ts'

/** Audit events. Source: service description 4.6. */
export const EVENT_OPERATIONS = {
  list_events: defineOperation({
    id: 'list_events',
    method: 'GET',
    path: '/v1/events',
    tag: 'Events',
    summary: 'List audit events, the newest first',
    query: ListEventsQuery,
    reply: jsonReply(EventPage, 'A page of events.'),
  }),
  get_event: defineOperation({
    id: 'get_event',
    method: 'GET',
    path: '/v1/events/{event_id}',
    tag: 'Events',
    summary: 'Get an audit event',
    params: EventIdParams,
    reply: taggedReply(EventReply, 'The event.'),
    problems: ['event_not_found'],
  }),
} as const satisfies Record<string, Operation>
