import { setImmediate } from 'node:timers/promises'
import { OPERATIONS } from '../../contract/operations.ts'
import type { USAGE_OPERATIONS } from '../../contract/usage/operations.ts'
import { getUsage, getSandboxBreakdown, getStorageBreakdown, midnightOf } from '../../control/usage/read-usage.ts'
import { decimalSeconds } from '../../domain/usage/metering.ts'
import type { OrgId } from '../../domain/ids.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'
import { Problem } from '../../domain/problem.ts'
import { makeFairSemaphore, runFairly } from '../../lib/fair-semaphore.ts'
import { parseInstant, type Handler, type HandlerFactory } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handlers of usage reports. */
export function makeUsageHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof USAGE_OPERATIONS, Handler> {
  const semaphore = makeFairSemaphore(REPORT_LIMITS)
  const report = (org: OrgId, work: () => Promise<string>): Promise<string> =>
    runFairly(semaphore, org, { work, onFull: tooManyReports })
  return {
    get_usage: handler(OPERATIONS.get_usage, async ({ query }, { caller }) =>
      JSON.stringify(await call(getUsage, caller, rangeOf(query))),
    ),
    get_sandbox_breakdown: handler(OPERATIONS.get_sandbox_breakdown, ({ query }, { caller }) =>
      report(caller.org_id, async () => {
        const { rows, sandboxes } = await call(getSandboxBreakdown, caller, rangeOf(query))
        const texts: string[] = []
        for (let from = 0; from < rows.length; from += ROWS_PER_TICK) {
          for (const row of rows.slice(from, from + ROWS_PER_TICK)) texts.push(renderUsageRow(row))
          await setImmediate()
        }
        return renderObject({}, { rows: renderList(texts), sandboxes: JSON.stringify(sandboxes) })
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
/** The number of rows that are rendered, in a few milliseconds, before other requests get a turn. */
const ROWS_PER_TICK = 2_000

function tooManyReports(): Problem {
  const max = REPORT_LIMITS.waitersPerKey
  const how_to_change = 'request one report after the other'
  return new Problem('rate_limited', {
    message: `too many requests: ${String(max)} reports of this organization wait already; ${how_to_change}`,
    details: { limit: 'org_reports_waiting', max, current: max, how_to_change },
  })
}

type Row = Awaited<ReturnType<typeof getSandboxBreakdown>>['rows'][number]

/**
 * Renders one row of a breakdown. The amounts are exact decimals, so they are copied as text and never converted to
 * numbers.
 */
function renderUsageRow({ sandbox_id, day, vcpu_ms, memory_mib_ms, disk_mib_ms }: Row): string {
  const amounts = {
    vcpu_seconds: decimalSeconds(vcpu_ms),
    mem_mib_seconds: decimalSeconds(memory_mib_ms),
    disk_mib_seconds: decimalSeconds(disk_mib_ms),
  }
  return renderObject({ sandbox_id, day: midnightOf(day) }, amounts)
}

function rangeOf(query: { readonly since?: string; readonly until?: string }) {
  return { since: parseInstant(query.since), until: parseInstant(query.until) }
}
