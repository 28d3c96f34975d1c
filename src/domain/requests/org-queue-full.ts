import { Problem } from '../problem.ts'

/**
 * The maximum number of database calls of one organization that wait for a connection. A server process executes some
 * thousands of calls a second.
 */
export const ORG_QUEUE_MAX = 1_024

/**
 * Refuses a database call (`rate_limited`), because `ORG_QUEUE_MAX` calls of its organization already wait. Unlike
 * other refusals, it may come after an earlier call of the same request has changed something.
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
