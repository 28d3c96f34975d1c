import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { makeFairSemaphore, runFairly } from '../../lib/fair-semaphore.ts'
import type { Database } from '../../store/postgres/database.ts'

/** How the connections for organizations are shared. */
export type OrgConnectionLimits = {
  readonly connections: number
  /** The most that one organization has at once; the others stay free for the others. */
  readonly perOrg: number
}

/** The most requests of one organization that wait for their turn; some thousands are served in a second. */
const WAITING_PER_ORG = 1_024

/** The refusal of a question to the database (`rate_limited`). Unlike others, it may come when a part of a request is done. */
export class OrgQueueFull extends Problem {
  constructor() {
    const how_to_change = 'send fewer requests at once'
    super('rate_limited', {
      message: `too many requests: ${String(WAITING_PER_ORG)} of this organization wait for the database; ${how_to_change}`,
      details: { limit: 'org_requests_waiting', max: WAITING_PER_ORG, current: WAITING_PER_ORG, how_to_change },
    })
  }
}

/**
 * The same database, for whose connections organizations take turns: one that asks slow questions, or many, waits for
 * itself. Throws `OrgQueueFull` when too many of one organization wait. The program's own work takes no turns.
 */
export function limitOrgConnections(db: Database, { connections, perOrg }: OrgConnectionLimits): Database {
  const semaphore = makeFairSemaphore({
    permits: connections,
    permitsPerKey: perOrg,
    waitersPerKey: WAITING_PER_ORG,
  })

  async function ask<T>(scope: OrgId | 'system', work: () => Promise<T>): Promise<T> {
    return scope === 'system' ? work() : runFairly(semaphore, scope, { work, onFull: () => new OrgQueueFull() })
  }

  return {
    ...db,
    asOrg: (org, fn) => ask(org, () => db.asOrg(org, fn)),
    transaction: (scope, fn) => ask(scope, () => db.transaction(scope, fn)),
    commitStatement: (scope, statement) => ask(scope, () => db.commitStatement(scope, statement)),
  }
}
