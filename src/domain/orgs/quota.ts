/**
 * What an organization may have: the names of its limits, and whether a create or a start stays within them. A limit
 * that is null is unlimited. Source: openapi.json, `QuotaReport` and `PoolUsage`.
 */
import { INT32_MAX } from '../requests/request-bounds.ts'

/** Every limit with its unit and what it bounds. `plans.limits`, `orgs.quota_overrides` and the reply use these names. */
export const LIMITS = {
  max_sandboxes: { unit: 'sandboxes', what: 'sandboxes that exist, whatever their status' },
  max_concurrent_ephemeral_running: { unit: 'sandboxes', what: 'ephemeral sandboxes that start or run' },
  max_concurrent_persistent_running: { unit: 'sandboxes', what: 'persistent sandboxes that start or run' },
  max_vcpus_per_sandbox: { unit: 'vcpus', what: 'processors of one sandbox' },
  max_memory_mib_per_sandbox: { unit: 'MiB', what: 'memory of one sandbox' },
  max_disk_size_mib_per_sandbox: { unit: 'MiB', what: 'writable disk that one sandbox asks for' },
  max_uptime_minutes_per_sandbox: { unit: 'minutes', what: 'time that one start may run' },
  max_total_storage_gib: { unit: 'GiB', what: 'what all volumes may hold together' },
  included_vcpu_hours: { unit: 'hours', what: 'vCPU-hours of a UTC month; a wall on a plan without prices' },
  included_memory_gib_hours: {
    unit: 'hours',
    what: 'memory GiB-hours of a UTC month; a wall on a plan without prices',
  },
  included_disk_gib_hours: { unit: 'hours', what: 'disk GiB-hours of a UTC month; for bills only' },
  included_storage_gib: { unit: 'GiB', what: 'storage of a UTC month; for bills only' },
} as const satisfies Record<string, { readonly unit: string; readonly what: string }>

export type LimitName = keyof typeof LIMITS
export type Limits = Readonly<Record<LimitName, number | null>>

/** What a limit's value may be, in words. */
export const LIMIT_RULE = `a whole number from 0 to ${String(INT32_MAX)}, or unlimited`

/** Whether a text names a limit. */
export function isLimitName(text: string): text is LimitName {
  return Object.hasOwn(LIMITS, text)
}

/** The pools that are walls when the plan has no prices: nothing could be charged for what goes beyond them. */
export const INCLUDED_HOURS = ['included_vcpu_hours', 'included_memory_gib_hours'] as const
export type IncludedHoursName = (typeof INCLUDED_HOURS)[number]

/** What runs took in the current UTC month: units times milliseconds, whole numbers. */
export type ComputeUse = { readonly vcpu_ms: bigint; readonly memory_mib_ms: bigint }

const HOUR_MS = 3_600_000n
const MIB_PER_GIB = 1024n

/** One included hour of a pool in the unit that its use is kept in. */
const UNITS_PER_HOUR: Record<IncludedHoursName, bigint> = {
  included_vcpu_hours: HOUR_MS,
  included_memory_gib_hours: HOUR_MS * MIB_PER_GIB,
}

/** What of a pool is used, in its own unit. */
export function usedUnits(pool: IncludedHoursName, use: ComputeUse): bigint {
  return pool === 'included_vcpu_hours' ? use.vcpu_ms : use.memory_mib_ms
}

/** What of a pool is used, in hours; exact to what a double holds. */
export function hoursUsed(pool: IncludedHoursName, use: ComputeUse): number {
  return Number(usedUnits(pool, use)) / Number(UNITS_PER_HOUR[pool])
}

export type IncludedHours = Pick<Limits, IncludedHoursName> & { readonly hard_cap: boolean }

/** What is left of a pool that is a wall, in its own unit and never below zero; null when it is no wall. */
export function remainingUnits(
  pool: IncludedHoursName,
  { hard_cap, ...included }: IncludedHours,
  use: ComputeUse,
): bigint | null {
  const hours = included[pool]
  if (!hard_cap || hours === null) return null
  const left = BigInt(hours) * UNITS_PER_HOUR[pool] - usedUnits(pool, use)
  return left > 0n ? left : 0n
}

/** The walls that are used up. */
export function exhaustedHours(pools: IncludedHours, use: ComputeUse): readonly IncludedHoursName[] {
  return INCLUDED_HOURS.filter((pool) => remainingUnits(pool, pools, use) === 0n)
}

/** Where an organization stands at the moment of a decision. */
export type QuotaUsage = ComputeUse &
  Limits & {
    readonly is_suspended: boolean
    readonly hard_cap: boolean
    readonly total_sandboxes: number
    readonly concurrent_ephemeral_running: number
    readonly concurrent_persistent_running: number
  }

/** What a create or a start asks for. */
export type QuotaRequest = {
  readonly creates: boolean
  readonly starts: boolean
  readonly ephemeral: boolean
  readonly vcpus: number
  readonly memory_mib: number
  /** null: the worker's own size. */
  readonly disk_size_mib: number | null
  /** null: none of its own. A start of a sandbox that exists is ended at the limit instead of refused. */
  readonly max_duration_secs: number | null
}

/**
 * Why a create or a start is refused: the limit, its value, what is in use and what was asked for beside it. Suspension
 * counts as a limit that lets nothing start.
 */
export type QuotaRefusal = {
  readonly limit: LimitName | 'is_suspended'
  readonly max: number
  /** null: the limit is about one sandbox, so that nothing is in use of it. */
  readonly current: number | null
  /** null: a start takes of a pool for as long as it runs. */
  readonly requested: number | null
}

/** Whether something fits: null when it does. */
function judge(standing: QuotaUsage, asked: QuotaRequest): QuotaRefusal | null {
  if (asked.starts && standing.is_suspended) return { limit: 'is_suspended', max: 0, current: null, requested: 1 }
  return refuseBySize(standing, asked) ?? refuseByCount(standing, asked) ?? refuseByHours(standing, asked)
}

/** Where the organization stands once something that fits was let in. */
function withAdmitted(standing: QuotaUsage, asked: QuotaRequest): QuotaUsage {
  return {
    ...standing,
    total_sandboxes: standing.total_sandboxes + Number(asked.creates),
    concurrent_ephemeral_running: standing.concurrent_ephemeral_running + Number(asked.starts && asked.ephemeral),
    concurrent_persistent_running: standing.concurrent_persistent_running + Number(asked.starts && !asked.ephemeral),
  }
}

/** Which of them fit beside each other, in their order, and why the others don't. */
export function splitByQuota<Item>(
  from: QuotaUsage,
  items: readonly Item[],
  askedBy: (item: Item) => QuotaRequest,
): { readonly fitting: readonly Item[]; readonly refused: ReadonlyMap<Item, QuotaRefusal> } {
  let standing = from
  const fitting: Item[] = []
  const refused = new Map<Item, QuotaRefusal>()
  for (const item of items) {
    const asked = askedBy(item)
    const refusal = judge(standing, asked)
    if (refusal !== null) refused.set(item, refusal)
    else {
      fitting.push(item)
      standing = withAdmitted(standing, asked)
    }
  }
  return { fitting, refused }
}

/** The limit of one sandbox that a spec exceeds, or null. */
export function refuseBySize(limits: Limits, asked: Omit<QuotaRequest, 'creates' | 'starts' | 'ephemeral'>) {
  const { vcpus, memory_mib, disk_size_mib, max_duration_secs } = asked
  return (
    refuseAbove('max_vcpus_per_sandbox', limits, vcpus) ??
    refuseAbove('max_memory_mib_per_sandbox', limits, memory_mib) ??
    refuseAbove('max_disk_size_mib_per_sandbox', limits, disk_size_mib ?? 0) ??
    refuseAbove('max_uptime_minutes_per_sandbox', limits, (max_duration_secs ?? 0) / 60)
  )
}

function refuseAbove(limit: LimitName, limits: Limits, requested: number): QuotaRefusal | null {
  const max = limits[limit]
  return max !== null && requested > max ? { limit, max, current: null, requested } : null
}

function refuseByCount(standing: QuotaUsage, asked: QuotaRequest): QuotaRefusal | null {
  const total = asked.creates ? refuseOneMore('max_sandboxes', standing, standing.total_sandboxes) : null
  if (total !== null || !asked.starts) return total
  return asked.ephemeral
    ? refuseOneMore('max_concurrent_ephemeral_running', standing, standing.concurrent_ephemeral_running)
    : refuseOneMore('max_concurrent_persistent_running', standing, standing.concurrent_persistent_running)
}

function refuseOneMore(limit: LimitName, limits: Limits, current: number): QuotaRefusal | null {
  const max = limits[limit]
  return max !== null && current >= max ? { limit, max, current, requested: 1 } : null
}

function refuseByHours(standing: QuotaUsage, asked: QuotaRequest): QuotaRefusal | null {
  const [limit] = asked.starts ? exhaustedHours(standing, standing) : []
  if (limit === undefined) return null
  return { limit, max: standing[limit] ?? 0, current: hoursUsed(limit, standing), requested: null }
}
