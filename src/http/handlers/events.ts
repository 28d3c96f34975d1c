import type { EVENT_OPERATIONS } from '../../contract/events/operations.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { getEvent, listEvents } from '../../control/events/read-events.ts'
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
      const range = { since: parseInstant(query.since), until: parseInstant(query.until) }
      const { event_type = null, category = null, sandbox_id = null, actor = null } = query
      const filter = { event_type, category, sandbox_id, actor: actor === null ? null : readActor(actor) }
      const input = { ...filter, ...range, ...pageInput(query) }
      return renderPage(await call(listEvents, caller, input), (event) => JSON.stringify(event))
    }),
    get_event: handler(OPERATIONS.get_event, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getEvent, caller, asId<EventId>(params.event_id.toLowerCase())))),
    ),
  }
}

function readActor(actor: string): string {
  if (isUuid(actor)) return actor.toLowerCase()
  if (SYSTEM_ACTOR_KEYS.includes(actor)) return actor
  return refuseField('query.actor', actor, `the id of an API key or a user, or one of ${SYSTEM_ACTOR_KEYS.join(', ')}`)
}
