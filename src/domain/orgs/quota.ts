/**
 * The limits of an organization, and the check whether a create or a start stays within them. A limit of null is
 * unlimited. The names of limits and of usage are those of `QuotaUsage` in openapi.json, where "pool" stands for the
 * included hours.
 */
import { INT32_MAX } from '../requests/request-bounds.ts'

/**
 * Every limit with its unit and description. The columns `plans.limits` and `orgs.quota_overrides` use these names too.
 */
export const LIMITS = {
  max_sandboxes: { unit: 'sandboxes', what: 'sandboxes that exist, whatever their status' },
  max_concurrent_ephemeral_running: { unit: 'sandboxes', what: 'ephemeral sandboxes that are starting or running' },
  max_concurrent_persistent_running: { unit: 'sandboxes', what: 'persistent sandboxes that are starting or running' },
  max_vcpus_per_sandbox: { unit: 'vcpus', what: 'vCPUs of one sandbox' },
  max_memory_mib_per_sandbox: { unit: 'MiB', what: 'memory of one sandbox' },
  max_disk_size_mib_per_sandbox: { unit: 'MiB', what: 'size of the writable disk that a create request sets' },
  max_uptime_minutes_per_sandbox: { unit: 'minutes', what: 'time from the start of a sandbox to its forced stop' },
  max_total_storage_gib: { unit: 'GiB', what: 'total size of all volumes and snapshots' },
  max_public_previews: { unit: 'previews', what: 'ports of sandboxes that are open to everybody' },
  max_webhooks: { unit: 'webhooks', what: 'webhooks of the organization' },
  included_vcpu_hours: {
    unit: 'hours',
    what: 'included vCPU-hours in a UTC month; a hard limit on a plan without prices',
  },
  included_memory_gib_hours: {
    unit: 'hours',
    what: 'included memory GiB-hours in a UTC month; a hard limit on a plan without prices',
  },
  included_disk_gib_hours: { unit: 'hours', what: 'included disk GiB-hours in a UTC month; for bills only' },
  included_storage_gib: {
    unit: 'GiB',
    what: 'included size of all volumes and snapshots, for a whole UTC month; for bills only',
  },
} as const satisfies Record<string, { readonly unit: string; readonly what: string }>

export type LimitName = keyof typeof LIMITS
export type Limits = Readonly<Record<LimitName, number | null>>

/**
 * The value of a limit as it is in force. A plan with prices charges everything that it doesn't include, so an included
 * amount of null is 0 there.
 */
export function formatLimit(
  name: LimitName,
  value: number | null,
  { hard_cap }: { readonly hard_cap: boolean },
): string {
  if (value !== null) return String(value)
  return isIncludedAmount(name) && !hard_cap ? '0' : 'unlimited'
}

/** Whether a limit is an amount that a plan includes, and charges for beyond it if it has prices. */
export function isIncludedAmount(name: LimitName): boolean {
  return name.startsWith('included_')
}

/** Describes a valid value of a limit, for refusals. */
export const LIMIT_RULE = `a whole number from 0 to ${String(INT32_MAX)}, or unlimited`

/** Whether a text is the name of a limit. */
export function isLimitName(text: string): text is LimitName {
  return Object.hasOwn(LIMITS, text)
}

/**
 * The limits on included hours. On a plan without prices they are hard limits, because usage beyond them can't be
 * charged.
 */
export const INCLUDED_HOURS = ['included_vcpu_hours', 'included_memory_gib_hours'] as const
export type IncludedHoursName = (typeof INCLUDED_HOURS)[number]

/** The usage by runs in the current UTC month: units times milliseconds, as whole numbers. */
export type ComputeUse = { readonly vcpu_ms: bigint; readonly memory_mib_ms: bigint }

const HOUR_MS = 3_600_000n
const MIB_PER_GIB = 1024n

/** One included hour in the units of `ComputeUse`. */
const UNIT_MS_PER_HOUR: Record<IncludedHoursName, bigint> = {
  included_vcpu_hours: HOUR_MS,
  included_memory_gib_hours: HOUR_MS * MIB_PER_GIB,
}

/**
 * The usage that counts against included hours, in the units of `ComputeUse`: vCPU-milliseconds or MiB-milliseconds.
 */
export function usedUnitMs(name: IncludedHoursName, use: ComputeUse): bigint {
  return name === 'included_vcpu_hours' ? use.vcpu_ms : use.memory_mib_ms
}

/** The usage that counts against included hours, in hours, rounded to a double. */
export function hoursUsed(name: IncludedHoursName, use: ComputeUse): number {
  return Number(usedUnitMs(name, use)) / Number(UNIT_MS_PER_HOUR[name])
}

export type IncludedHours = Pick<Limits, IncludedHoursName> & { readonly hard_cap: boolean }

/** Whether the organization's sandboxes stop once its included hours are used up. */
export function hasHardLimit(hours: IncludedHours): boolean {
  return hours.hard_cap && INCLUDED_HOURS.some((name) => hours[name] !== null)
}

/**
 * How much usage is left until the included hours are used up, in the units of `ComputeUse`, at least 0. Null if the
 * included hours are not a hard limit.
 */
export function remainingUnitMs(
  name: IncludedHoursName,
  { hard_cap, ...included }: IncludedHours,
  use: ComputeUse,
): bigint | null {
  const hours = included[name]
  if (!hard_cap || hours === null) return null
  const left = BigInt(hours) * UNIT_MS_PER_HOUR[name] - usedUnitMs(name, use)
  return left > 0n ? left : 0n
}

/** The included hours that are a hard limit and are used up. */
export function exhaustedHours(hours: IncludedHours, use: ComputeUse): readonly IncludedHoursName[] {
  return INCLUDED_HOURS.filter((name) => remainingUnitMs(name, hours, use) === 0n)
}

/** The limits and the current usage of an organization: the input of the decision about creates and starts. */
export type QuotaUsage = ComputeUse &
  Limits & {
    readonly is_suspended: boolean
    readonly hard_cap: boolean
    readonly total_sandboxes: number
    readonly concurrent_ephemeral_running: number
    readonly concurrent_persistent_running: number
  }

/** The amounts that a create or a start requests. */
export type QuotaRequest = {
  readonly creates: boolean
  readonly starts: boolean
  readonly ephemeral: boolean
  readonly vcpus: number
  readonly memory_mib: number
  /** Null: the worker chooses the size. */
  readonly disk_size_mib: number | null
  /**
   * Null: nothing to check, because the request sets no maximum duration or starts an existing sandbox. The run is
   * stopped at the organization's limit.
   */
  readonly max_duration_secs: number | null
}

/**
 * A refused create or start: the limit, its value, the current usage, and the requested amount. A suspension counts as
 * a limit of 0 starts.
 */
export type QuotaRefusal = {
  readonly limit: LimitName | 'is_suspended'
  readonly max: number
  /** Null: the limit applies to each sandbox separately. */
  readonly current: number | null
  /** Null: the refusal is due to used-up included hours, of which a start requests no fixed amount. */
  readonly requested: number | null
}

/** Checks a request against all limits. Returns the refusal by the first limit that the request exceeds, or null. */
function check(usage: QuotaUsage, request: QuotaRequest): QuotaRefusal | null {
  if (request.starts && usage.is_suspended) return { limit: 'is_suspended', max: 0, current: null, requested: 1 }
  return findExceededSize(usage, request) ?? refuseByCount(usage, request) ?? refuseByHours(usage, request)
}

/** The usage after a request is admitted. */
function withAdmitted(usage: QuotaUsage, request: QuotaRequest): QuotaUsage {
  return {
    ...usage,
    total_sandboxes: usage.total_sandboxes + Number(request.creates),
    concurrent_ephemeral_running: usage.concurrent_ephemeral_running + Number(request.starts && request.ephemeral),
    concurrent_persistent_running: usage.concurrent_persistent_running + Number(request.starts && !request.ephemeral),
  }
}

/**
 * Checks requests in their order, each against the usage with all requests admitted before it. Returns the admitted
 * requests, and the refused ones with their refusals.
 */
export function splitByQuota<Item>(
  from: QuotaUsage,
  items: readonly Item[],
  requestOf: (item: Item) => QuotaRequest,
): { readonly fitting: readonly Item[]; readonly refused: ReadonlyMap<Item, QuotaRefusal> } {
  let usage = from
  const fitting: Item[] = []
  const refused = new Map<Item, QuotaRefusal>()
  for (const item of items) {
    const request = requestOf(item)
    const refusal = check(usage, request)
    if (refusal !== null) refused.set(item, refusal)
    else {
      fitting.push(item)
      usage = withAdmitted(usage, request)
    }
  }
  return { fitting, refused }
}

/**
 * Checks a request against the limits on the size of a single sandbox. Returns the first limit that the request
 * exceeds, or null.
 */
export function findExceededSize(limits: Limits, request: Omit<QuotaRequest, 'creates' | 'starts' | 'ephemeral'>) {
  const { vcpus, memory_mib, disk_size_mib, max_duration_secs } = request
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

function refuseByCount(usage: QuotaUsage, request: QuotaRequest): QuotaRefusal | null {
  const total = request.creates ? refuseOneMore('max_sandboxes', usage, usage.total_sandboxes) : null
  if (total !== null || !request.starts) return total
  return request.ephemeral
    ? refuseOneMore('max_concurrent_ephemeral_running', usage, usage.concurrent_ephemeral_running)
    : refuseOneMore('max_concurrent_persistent_running', usage, usage.concurrent_persistent_running)
}

function refuseOneMore(limit: LimitName, limits: Limits, current: number): QuotaRefusal | null {
  const max = limits[limit]
  return max !== null && current >= max ? { limit, max, current, requested: 1 } : null
}

function refuseByHours(usage: QuotaUsage, request: QuotaRequest): QuotaRefusal | null {
  const [limit] = request.starts ? exhaustedHours(usage, usage) : []
  if (limit === undefined) return null
  return { limit, max: usage[limit] ?? 0, current: hoursUsed(limit, usage), requested: null }
}
