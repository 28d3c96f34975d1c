import { clearQuota, readQuotaUsage, setQuota } from '../../control/orgs/quotas.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { parseLimitValue } from '../../domain/orgs/plan.ts'
import { hoursUsed, isLimitName, LIMIT_RULE, LIMITS, type LimitName } from '../../domain/orgs/quota.ts'
import type { QuotaUsageRow } from '../../store/orgs/quotas.ts'
import { runOnOrg, type OrgAction } from './act-on-org.ts'
import type { OperatorDeps } from './borrow-control.ts'
import { UsageError, type Call, type Command } from './command.ts'

export const quota: Command = {
  usage: 'quota show [--json] | set LIMIT VALUE|unlimited | clear LIMIT [--org SLUG]',
  summary: "an organization's limits: its own where they are set, else its plan's",
  details: `A limit that is set for an organization wins over its plan's, \`unlimited\` too; \`clear\` gives the plan's back. It
holds at once for what is created and started; what exceeds it already stays, but for used up pools.

limits:
${Object.entries(LIMITS)
  .map(([name, { unit, what }]) => `  ${name}\n      ${what} [${unit}]`)
  .join('\n')}
`,
  run: async (call) => runOnOrg(call, readAct(call)),
}

function readAct({ args, switches }: Call): OrgAction {
  const [verb, name, word, ...rest] = args
  if (rest.length === 0) {
    if (verb === 'show' && name === undefined) return switches.has('json') ? showJson : show
    if (verb === 'set' && name !== undefined && word !== undefined) return setting(readLimit(name), readValue(word))
    if (verb === 'clear' && name !== undefined && word === undefined) return clearing(readLimit(name))
  }
  throw new UsageError(`usage: sandyard ${quota.usage}`)
}

async function show(control: OperatorDeps, { org_id }: OrgActor): Promise<void> {
  const standing = await readQuotaUsage(control, org_id)
  const lines = limitNames().map((name) => {
    const value = standing[name]
    const from = Object.hasOwn(standing.quota_overrides, name) ? 'its own' : `plan ${standing.plan}`
    return [name, value === null ? 'unlimited' : String(value), LIMITS[name].unit, inUse(name, standing), from].join(
      '\t',
    )
  })
  process.stdout.write(`${['LIMIT\tVALUE\tUNIT\tIN USE\tFROM', ...lines].join('\n')}\n`)
}

async function showJson(control: OperatorDeps, { org_id }: OrgActor): Promise<void> {
  const { vcpu_ms: _vcpu, memory_mib_ms: _memory, ...standing } = await readQuotaUsage(control, org_id)
  process.stdout.write(`${JSON.stringify(standing, null, 2)}\n`)
}

/** What of a limit is in use; `-` where that is no matter of the organization as a whole. */
function inUse(name: LimitName, standing: QuotaUsageRow): string {
  switch (name) {
    case 'max_sandboxes':
      return String(standing.total_sandboxes)
    case 'max_concurrent_ephemeral_running':
      return String(standing.concurrent_ephemeral_running)
    case 'max_concurrent_persistent_running':
      return String(standing.concurrent_persistent_running)
    case 'included_vcpu_hours':
    case 'included_memory_gib_hours':
      return hoursUsed(name, standing).toFixed(2)
    default:
      return '-'
  }
}

function setting(limit: LimitName, value: number | null): OrgAction {
  return async (control, acting) => {
    await setQuota(control, acting, { limit, value })
    process.stdout.write(`${limit} is ${value === null ? 'unlimited' : String(value)}\n`)
  }
}

function clearing(limit: LimitName): OrgAction {
  return async (control, acting) => {
    await clearQuota(control, acting, limit)
    process.stdout.write(`${limit} is what the plan says\n`)
  }
}

function readLimit(name: string): LimitName {
  if (isLimitName(name)) return name
  throw new UsageError(`there is no limit '${name}'; there is ${limitNames().join(', ')}`)
}

function readValue(word: string): number | null {
  const value = parseLimitValue(word)
  if (value === undefined) throw new UsageError(`a limit is ${LIMIT_RULE}, not '${word}'`)
  return value
}

function limitNames(): readonly LimitName[] {
  return Object.keys(LIMITS).filter(isLimitName)
}
