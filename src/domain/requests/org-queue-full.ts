import { Problem } from '../problem.ts'

/**
 * The most database calls of one organization that may wait for a connection. A process serves some thousands a second.
 */
export const ORG_QUEUE_MAX = 1_024

/**
 * The refusal of a database call (`rate_limited`). Unlike other refusals, it may come after a part of the request was
 * done.
 */
export class OrgQueueFull extends Problem {
  constructor() {
    const how_to_change = 'send fewer requests at once'
    super('rate_limited', {
      message: `too many requests: ${String(ORG_QUEUE_MAX)} of this organization wait for the database; ${how_to_change}`,
      details: { limit: 'org_requests_waiting', max: ORG_QUEUE_MAX, current: ORG_QUEUE_MAX, how_to_change },
    })
  }
}
