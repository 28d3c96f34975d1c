import { OPERATIONS } from '../../contract/operations.ts'
import type { EVENT_OPERATIONS } from '../../contract/events/operations.ts'
import type { ORG_OPERATIONS } from '../../contract/orgs/org-operations.ts'
import { getOrg } from '../../control/orgs/orgs.ts'
import { listEvents, getEvent } from '../../control/events/read-events.ts'
import { asId, type EventId } from '../../domain/ids.ts'
import { PAGE_DEFAULT } from '../../domain/requests/request-bounds.ts'
import {
  parseInstant,
  renderPage,
  taggedReply,
  type Handler,
  type HandlerFactory,
  type CallUseCase,
} from './handler.ts'

type Handled = keyof typeof ORG_OPERATIONS | keyof typeof EVENT_OPERATIONS

/** What the operations on the organization and its events ask of the use cases. */
export function makeOrgHandlers(call: CallUseCase, handler: HandlerFactory): Record<Handled, Handler> {
  return {
    get_org: handler(OPERATIONS.get_org, async (_request, { caller }) =>
      taggedReply(JSON.stringify(await call(getOrg, caller))),
    ),
    list_events: handler(OPERATIONS.list_events, async ({ query }, { caller }) => {
      const { event_type = null, cursor = null, limit = PAGE_DEFAULT } = query
      const input = { event_type, since: parseInstant(query.since), until: parseInstant(query.until), cursor, limit }
      return renderPage(await call(listEvents, caller, input), (event) => JSON.stringify(event))
    }),
    get_event: handler(OPERATIONS.get_event, async ({ params }, { caller }) =>
      taggedReply(JSON.stringify(await call(getEvent, caller, asId<EventId>(params.event_id.toLowerCase())))),
    ),
  }
}
