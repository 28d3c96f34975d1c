import type { Command } from 'commander'
import { exportUsage } from '../../control/usage/export-usage.ts'
import { Problem } from '../../domain/problem.ts'
import { decimalSeconds } from '../../domain/usage/metering.ts'
import { csvLine } from '../../lib/csv.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg } from './operator.ts'
import { write } from './output.ts'

const COLUMNS = ['day', 'sandbox_id', 'name', 'slug', 'vcpu_seconds', 'memory_mib_seconds', 'disk_mib_seconds']

/** Defines `sandyard usage`, which reports the usage of an organization's sandboxes. */
export function defineUsage(usage: Command): void {
  runs(
    orgCommand(usage, 'export', 'print usage by day and sandbox as CSV; of the current month unless given')
      .option('--since <time>', 'from when on, such as 2028-02-29 or 2028-02-29T12:00:00Z; days are UTC')
      .option('--until <time>', 'until when, in the same form'),
    exportCsv,
  )
}

async function exportCsv(call: Call): Promise<void> {
  const asked = { since: readInstant(call, 'since'), until: readInstant(call, 'until') }
  await withOrg(call, async (deps, { org_id }) => {
    try {
      const pages = exportUsage(deps, { org_id }, asked)
      await write(csvLine(COLUMNS))
      for await (const page of pages) {
        const lines = page.map(({ day, sandbox_id, name, slug, vcpu_ms, memory_mib_ms, disk_mib_ms }) =>
          csvLine([day, sandbox_id, name, slug, ...[vcpu_ms, memory_mib_ms, disk_mib_ms].map(decimalSeconds)]),
        )
        await write(lines.join(''))
      }
    } catch (error) {
      if (error instanceof Problem && error.code === 'invalid_request') throw new UsageError(error.message)
      throw error
    }
  })
}

/** RFC 3339, or only a day, which means its midnight in UTC. */
const INSTANT = /^\d{4}-\d{2}-\d{2}(?:[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2}))?$/

function readInstant({ texts }: Call, flag: 'since' | 'until'): Date | null {
  const text = texts[flag]
  if (text === undefined) return null
  const instant = new Date(text)
  if (!INSTANT.test(text) || Number.isNaN(instant.getTime()))
    throw new UsageError(`--${flag} takes a day such as 2028-02-29, or an instant such as 2028-02-29T12:00:00Z`)
  return instant
}
