import { Type } from 'typebox'
import { DateTime, nullable, pageOf, requestObject, stringEnum, taggedUnion, Uuid, pageQuery } from '../common.ts'
import { LAST_EVENT_ID_HEADER } from '../streams/operations.ts'
import { EVENT_CATEGORIES } from '../../domain/events/event-types.ts'
import { defineOperation, jsonReply, taggedReply, type Operation } from '../operation.ts'

/** The schemas and operations of audit events. */

const EventActor = taggedUnion(
  'kind',
  [
    Type.Object({ kind: stringEnum(['user']), user_id: Uuid, label: Type.String(), redacted_email: Type.String() }),
    Type.Object({ kind: stringEnum(['api_key']), api_key_id: Uuid, name: Type.String() }),
    Type.Object({ kind: stringEnum(['system']), code: Type.String(), label: Type.String() }),
    Type.Object({
      kind: stringEnum(['ssh_key']),
      key_id: Uuid,
      fingerprint: Type.String(),
      label: Type.Optional(nullable(Type.String())),
    }),
  ],
  { title: 'EventActor', description: 'Who caused an event, with the names from the time of the event.' },
)

export const EventReply = Type.Object(
  {
    id: Uuid,
    org_id: Uuid,
    timestamp: DateTime,
    category: Type.String(),
    event_type: Type.String(),
    actor: EventActor,
    payload: Type.Unknown({ description: 'Details, which depend on the type of the event.' }),
  },
  { title: 'Event', description: 'Something that happened in the organization. Events never change.' },
)

export const EventPage = pageOf(EventReply, 'EventPage')

export const EventIdParams = requestObject({ event_id: Uuid })

const filters = {
  event_type: Type.Optional(Type.String({ description: 'Only events of this type.' })),
  category: Type.Optional(stringEnum(EVENT_CATEGORIES, { description: 'Only events of this category.' })),
  sandbox_id: Type.Optional(
    Type.String({ format: 'uuid', description: 'Only events of this sandbox, which may be deleted.' }),
  ),
  actor: Type.Optional(
    Type.String({
      description:
        'Only events that this actor caused: the id of an API key or of a user, `operator`, or `sandyard` for the service itself.',
    }),
  ),
  since: Type.Optional(Type.String({ format: 'date-time', description: 'Only events at or after this instant.' })),
  until: Type.Optional(Type.String({ format: 'date-time', description: 'Only events at or before this instant.' })),
}

export const ListEventsQuery = requestObject({ ...filters, ...pageQuery })

const StreamEventsQuery = requestObject({
  ...filters,
  after: Type.Optional(
    Type.String({
      description: 'The id of the last event that arrived, for clients that can not send `Last-Event-ID`.',
    }),
  ),
})

export const EVENT_OPERATIONS = {
  list_events: defineOperation({
    id: 'list_events',
    method: 'GET',
    path: '/v1/events',
    tag: 'Events',
    summary: 'List audit events, the newest first',
    description:
      'With several filters, a page may have fewer events than `limit`, or none, although more follow: continue while there is a `next_cursor`.',
    query: ListEventsQuery,
    reply: jsonReply(EventPage, 'A page of events.'),
  }),
  stream_events: defineOperation({
    id: 'stream_events',
    method: 'GET',
    path: '/v1/events/stream',
    tag: 'Events',
    summary: 'Follow audit events as they happen',
    description:
      'Server-Sent Events: each is of the type `event`, and its data is an audit event. A stream misses no event and repeats none. Events of one sandbox are in the order in which they happened; unrelated events that happen at the same moment may be in another order in another stream. After a break, reconnect with `Last-Event-ID`, as an EventSource does automatically. Without it, the stream begins now.',
    query: StreamEventsQuery,
    headers: requestObject({
      [LAST_EVENT_ID_HEADER]: Type.Optional(
        Type.String({ description: 'The id of the last event that arrived. The stream continues after it.' }),
      ),
    }),
    reply: { kind: 'events', status: 200, schema: EventReply, description: 'A stream of events.' },
    problems: ['rate_limited'],
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
