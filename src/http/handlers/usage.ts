import { OPERATIONS } from '../../contract/operations.ts'
import type { USAGE_OPERATIONS } from '../../contract/usage/operations.ts'
import {
  BREAKDOWN_PAGE_MAX,
  getUsage,
  getSandboxBreakdown,
  getStorageBreakdown,
} from '../../control/usage/read-usage.ts'
import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { makeFairSemaphore, runFairly } from '../../lib/turns/fair-semaphore.ts'
import { parseInstant, type Handler, type HandlerFactory, type PiecedReply } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of usage reports. */
export function makeUsageHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof USAGE_OPERATIONS, Handler> {
  const semaphore = makeFairSemaphore(REPORT_LIMITS)
  const report = <Reply extends string | PiecedReply>(org: OrgId, work: () => Promise<Reply>): Promise<Reply> =>
    runFairly(semaphore, org, { work, onFull: tooManyReports })
  return {
    get_usage: handler(OPERATIONS.get_usage, async ({ query }, { caller }) =>
      JSON.stringify(await call(getUsage, caller, rangeOf(query))),
    ),
    get_sandbox_breakdown: handler(OPERATIONS.get_sandbox_breakdown, ({ query }, { caller }) =>
      report(caller.org_id, async () => {
        const page = pageOf(query)
        const { items, sandboxes, nextCursor } = await call(getSandboxBreakdown, caller, { ...rangeOf(query), page })
        const end = page === null ? {} : { has_more: nextCursor !== null, next_cursor: nextCursor }
        return { pieces: renderInPieces(end, items, sandboxes) }
      }),
    ),
    get_storage_breakdown: handler(OPERATIONS.get_storage_breakdown, ({ query }, { caller }) =>
      report(caller.org_id, async () => JSON.stringify(await call(getStorageBreakdown, caller, rangeOf(query)))),
    ),
  }
}

/**
 * How many breakdowns are rendered at once, in total and per organization. A breakdown may have hundreds of thousands
 * of rows, which take about 100 MB while they are read and rendered.
 */
const REPORT_LIMITS = { permits: 2, permitsPerKey: 1, waitersPerKey: 8 } as const

function tooManyReports(): Problem {
  const max = REPORT_LIMITS.waitersPerKey
  const how_to_change = 'request one report after the other'
  return new Problem('rate_limited', {
    message: `too many requests: ${String(max)} reports of this organization wait already; ${how_to_change}`,
    details: { limit: 'org_reports_waiting', max, current: max, how_to_change },
  })
}

/** The JSON text of a breakdown whose rows are in pieces already. */
function renderInPieces(end: object, items: readonly Buffer[], sandboxes: readonly object[]): readonly Buffer[] {
  const head = JSON.stringify(end).slice(0, -1)
  const list = items.flatMap((piece, index) => (index === 0 ? [piece] : [Buffer.from(','), piece]))
  const tail = `],"sandboxes":${JSON.stringify(sandboxes)}}`
  return [Buffer.from(`${head === '{' ? head : `${head},`}"rows":[`), ...list, Buffer.from(tail)]
}

/** The page of the request. Null: it asked for no pages, as clients did before there were any. */
function pageOf({ cursor, limit }: { readonly cursor?: string; readonly limit?: number }) {
  if (cursor === undefined && limit === undefined) return null
  return { cursor: cursor ?? null, limit: limit ?? BREAKDOWN_PAGE_MAX }
}

function rangeOf(query: { readonly since?: string; readonly until?: string }) {
  return { since: parseInstant(query.since), until: parseInstant(query.until) }
}
