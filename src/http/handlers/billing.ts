import { OPERATIONS } from '../../contract/operations.ts'
import type { BILLING_OPERATIONS } from '../../contract/operations/billing.ts'
import { midnightOf } from '../../control/read-usage.ts'
import { decimalSeconds } from '../../domain/metering.ts'
import { instant, type Handler, type HandlerMaker } from '../handler.ts'
import type { UseCases } from '../use-cases.ts'

/** What the operations on usage ask of the use cases. */
export function makeBillingHandlers(
  useCases: UseCases,
  handler: HandlerMaker,
): Record<keyof typeof BILLING_OPERATIONS, Handler> {
  return {
    get_usage: handler(OPERATIONS.get_usage, async ({ query }, { caller }) =>
      JSON.stringify(await useCases.getUsage(caller, rangeOf(query))),
    ),
    get_sandbox_breakdown: handler(OPERATIONS.get_sandbox_breakdown, async ({ query }, { caller }) => {
      const { rows, sandboxes } = await useCases.getSandboxBreakdown(caller, rangeOf(query))
      return `{"rows":[${rows.map(renderRow).join(',')}],"sandboxes":${JSON.stringify(sandboxes)}}`
    }),
    get_storage_breakdown: handler(OPERATIONS.get_storage_breakdown, async ({ query }, { caller }) =>
      JSON.stringify(await useCases.getStorageBreakdown(caller, rangeOf(query))),
    ),
  }
}

type Row = Awaited<ReturnType<UseCases['getSandboxBreakdown']>>['rows'][number]

/** By hand, because there are tens of thousands of them; nothing in them needs escaping. */
function renderRow({ sandbox_id, day, vcpu_ms, memory_mib_ms, disk_mib_ms }: Row): string {
  return `{"sandbox_id":"${sandbox_id}","day":"${midnightOf(day)}","vcpu_seconds":${decimalSeconds(vcpu_ms)},"mem_mib_seconds":${decimalSeconds(memory_mib_ms)},"disk_mib_seconds":${decimalSeconds(disk_mib_ms)}}`
}

function rangeOf(query: { readonly since?: string; readonly until?: string }) {
  return { since: instant(query.since), until: instant(query.until) }
}
