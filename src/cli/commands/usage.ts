import { once } from 'node:events'
import { exportUsage } from '../../control/usage/export-usage.ts'
import { decimalSeconds } from '../../domain/usage/metering.ts'
import { Problem } from '../../domain/problem.ts'
import { csvLine } from '../../lib/csv.ts'
import { openOperatorDeps } from './borrow-control.ts'
import { findOrg } from './choose-org.ts'
import { UsageError, type Command } from './command.ts'

const COLUMNS = ['day', 'sandbox_id', 'name', 'slug', 'vcpu_seconds', 'memory_mib_seconds', 'disk_mib_seconds']

export const usage: Command = {
  usage: 'usage export [--org SLUG] [--since T] [--until T]',
  summary:
    'write usage by day and sandbox as CSV; by default of the current month (times as 2028-02-29 or in full, UTC)',
  async run({ config, args, texts }) {
    if (args.join(' ') !== 'export') throw new UsageError(`usage: sandyard ${usage.usage}`)
    const asked = { since: readInstant('since', texts['since']), until: readInstant('until', texts['until']) }
    await using control = await openOperatorDeps(config)
    const { id: org_id } = await findOrg(control.db, texts['org'])
    try {
      const pages = exportUsage(control, { org_id }, asked)
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
    return 0
  },
}

/** RFC 3339, or a day alone: its midnight. */
const INSTANT = /^\d{4}-\d{2}-\d{2}(?:[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2}))?$/

function readInstant(flag: string, text: string | undefined): Date | null {
  if (text === undefined) return null
  const instant = new Date(text)
  if (!INSTANT.test(text) || Number.isNaN(instant.getTime()))
    throw new UsageError(`--${flag} takes a day such as 2028-02-29, or an instant such as 2028-02-29T12:00:00Z`)
  return instant
}

/** Waits while whoever reads is slower. */
async function write(text: string): Promise<void> {
  if (!process.stdout.write(text)) await once(process.stdout, 'drain')
}
