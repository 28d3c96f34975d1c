import type { Caller } from '../../domain/orgs/caller.ts'
import type { RequestedRange } from '../../domain/usage/usage-range.ts'
import { sandboxDays, type DayPosition, type SandboxDay } from '../../store/usage/sandbox-days.ts'
import { sandboxNames, type UsageQuery } from '../../store/usage/usage.ts'
import type { BaseDeps } from '../deps.ts'
import { requireKept, usageQueryOf } from './read-usage.ts'

/** How many rows are read at a time and held in memory. */
const PAGE = 10_000

/**
 * The usage of a sandbox on a day, with its latest name and slug. An amount is text: units times milliseconds, as a
 * whole number.
 */
export type ExportedSandboxDay = SandboxDay & { readonly name: string; readonly slug: string }

/**
 * Exports usage by day and sandbox. It reads a page at a time, so that the size of an export is not limited. Open runs
 * count up to the moment of the call. Throws `invalid_request` for a bad range at once, before it reads anything, and
 * for a range whose usage is deleted before the first page.
 */
export function exportUsage(
  deps: Pick<BaseDeps, 'db' | 'clock'>,
  { org_id }: Pick<Caller, 'org_id'>,
  requested: RequestedRange,
): AsyncGenerator<readonly ExportedSandboxDay[]> {
  return pagesOf(deps, usageQueryOf(deps, org_id, requested))
}

async function* pagesOf(
  { db }: Pick<BaseDeps, 'db'>,
  query: UsageQuery,
): AsyncGenerator<readonly ExportedSandboxDay[]> {
  const { org_id, range } = query
  let after: DayPosition | null = null
  do {
    const page: readonly ExportedSandboxDay[] = await db.asOrg(org_id, async (q) => {
      const { rows, next } = await sandboxDays(q, query, { limit: PAGE, after })
      await requireKept(q, range, 'sandboxes')
      after = next
      const ids = [...new Set(rows.map(({ sandbox_id }) => sandbox_id))]
      const names = new Map((await sandboxNames(q, org_id, ids)).map((sandbox) => [sandbox.id, sandbox]))
      return rows.map((row) => {
        const { name, slug } = names.get(row.sandbox_id) ?? { name: '', slug: '' }
        return { ...row, name, slug }
      })
    })
    if (page.length > 0) yield page
  } while (after !== null)
}
