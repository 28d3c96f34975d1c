import { Argument, type Command } from 'commander'
import { clearQuota, readQuotaUsage, setQuota } from '../../control/orgs/quotas.ts'
import { parseLimitValue } from '../../domain/orgs/plan.ts'
import { formatLimit, hoursUsed, isLimitName, LIMIT_RULE, LIMITS, type LimitName } from '../../domain/orgs/quota.ts'
import type { QuotaUsageRow } from '../../store/orgs/quotas.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg } from './operator.ts'
import { printJson, printTable } from './output.ts'

const LIMIT_NAMES: readonly LimitName[] = Object.keys(LIMITS).filter(isLimitName)

const HELP = `
A limit that is set for an organization wins over the limit of its plan, also when it is \`unlimited\`. A change applies at
once to creates and starts. Sandboxes that exceed a lowered limit keep running, except after the end of included hours.
A plan with prices charges what is not included, so an included amount can't be \`unlimited\` there.

Limits:
${describeLimits()}`

/** Describes every limit with its meaning and unit, for help texts. */
export function describeLimits(): string {
  return LIMIT_NAMES.map((name) => `  ${name}\n      ${LIMITS[name].what} [${LIMITS[name].unit}]`).join('\n')
}

/** Defines `sandyard quota`, which manages the limits of one organization. */
export function defineQuota(quota: Command): void {
  quota.addHelpText('after', HELP)
  const limit = (): Argument => new Argument('<limit>', 'the name of a limit').choices(LIMIT_NAMES)
  runs(orgCommand(quota, 'show', 'show the limits and what is in use').option('--json', 'print JSON'), show)
  runs(
    orgCommand(quota, 'set', "set a limit that wins over the plan's")
      .addArgument(limit())
      .argument('<value>', 'a whole number, or `unlimited`'),
    set,
  )
  runs(orgCommand(quota, 'clear', "go back to the plan's limit").addArgument(limit()), clear)
}

async function show(call: Call): Promise<void> {
  await withOrg(call, async (deps, { org_id }) => {
    const usage = await readQuotaUsage(deps, org_id)
    if (call.switches.has('json')) {
      const { vcpu_ms: _vcpu, memory_mib_ms: _memory, ...shown } = usage
      return printJson(shown)
    }
    const rows = LIMIT_NAMES.map((name) => {
      const source = Object.hasOwn(usage.quota_overrides, name) ? 'its own' : `plan ${usage.plan}`
      return [name, formatLimit(name, usage[name], usage), LIMITS[name].unit, inUse(name, usage), source]
    })
    printTable(['LIMIT', 'VALUE', 'UNIT', 'IN USE', 'FROM'], rows)
  })
}

/** How much of a limit the organization uses, as text. Null for a limit that applies to each sandbox separately. */
function inUse(name: LimitName, usage: QuotaUsageRow): string | null {
  switch (name) {
    case 'max_sandboxes':
      return String(usage.total_sandboxes)
    case 'max_concurrent_ephemeral_running':
      return String(usage.concurrent_ephemeral_running)
    case 'max_concurrent_persistent_running':
      return String(usage.concurrent_persistent_running)
    case 'included_vcpu_hours':
    case 'included_memory_gib_hours':
      return hoursUsed(name, usage).toFixed(2)
    default:
      return null
  }
}

async function set(call: Call): Promise<void> {
  const [name = '', word = ''] = call.args
  const limit = readLimit(name)
  const value = parseLimitValue(word)
  if (value === undefined) throw new UsageError(`a limit is ${LIMIT_RULE}, not '${word}'`)
  await withOrg(call, async (deps, acting) => {
    await setQuota(deps, acting, { limit, value })
    process.stdout.write(`${limit} is ${value === null ? 'unlimited' : String(value)}\n`)
  })
}

async function clear(call: Call): Promise<void> {
  const [name = ''] = call.args
  const limit = readLimit(name)
  await withOrg(call, async (deps, acting) => {
    await clearQuota(deps, acting, limit)
    process.stdout.write(`${limit} is what the plan says\n`)
  })
}

function readLimit(name: string): LimitName {
  if (isLimitName(name)) return name
  throw new UsageError(`unknown limit '${name}'; the limits are ${LIMIT_NAMES.join(', ')}`)
}
