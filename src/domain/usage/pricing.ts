/**
 * The cost of metered quantities. Quantities, prices and allowances are always whole numbers. An amount is rounded
 * once, half up, to whole cents.
 */
import { HOUR_MS, type Month, type TimeRange } from './metering.ts'

export const METRICS = ['vcpu', 'memory', 'disk', 'storage'] as const
export type Metric = (typeof METRICS)[number]

/** Metered vCPUs, MiB of memory, MiB of disk and bytes of storage, each times milliseconds. */
export type Quantities = Readonly<Record<Metric, bigint>>

/** Prices of a plan in millionths of a cent. An absent price is 0. */
export type PriceTable = {
  readonly vcpu_hour_microcents?: number
  readonly memory_gib_hour_microcents?: number
  readonly disk_gib_hour_microcents?: number
  readonly storage_gib_hour_microcents?: number
}

/** The amounts that a plan includes in each calendar month. Null: nothing. */
export type Allowances = {
  readonly included_vcpu_hours: number | null
  readonly included_memory_gib_hours: number | null
  readonly included_disk_gib_hours: number | null
  /** GiB for the whole month. */
  readonly included_storage_gib: number | null
}

/** The terms of an organization's bill. Without prices, everything is free. */
export type BillingTerms = Allowances & { readonly prices: PriceTable | null }

type MetricDefinition = {
  readonly name: string
  readonly unit: string
  /** The metered quantity that is one billing unit. */
  readonly perUnit: bigint
  readonly price: keyof PriceTable
  /** The number of billing units that are included in a month. */
  readonly included: (allowances: Allowances, month: Month) => number
}

const HOUR = BigInt(HOUR_MS)
const MIB_PER_GIB = 1024n
const BYTES_PER_GIB = 1024n ** 3n

/** The name, unit and price of each metric. */
export const METRIC_DEFINITIONS: Readonly<Record<Metric, MetricDefinition>> = {
  vcpu: {
    name: 'vCPU',
    unit: 'vCPU-hours',
    perUnit: HOUR,
    price: 'vcpu_hour_microcents',
    included: ({ included_vcpu_hours }) => included_vcpu_hours ?? 0,
  },
  memory: {
    name: 'Memory',
    unit: 'GiB-hours',
    perUnit: MIB_PER_GIB * HOUR,
    price: 'memory_gib_hour_microcents',
    included: ({ included_memory_gib_hours }) => included_memory_gib_hours ?? 0,
  },
  disk: {
    name: 'Disk',
    unit: 'GiB-hours',
    perUnit: MIB_PER_GIB * HOUR,
    price: 'disk_gib_hour_microcents',
    included: ({ included_disk_gib_hours }) => included_disk_gib_hours ?? 0,
  },
  storage: {
    name: 'Storage',
    unit: 'GiB-hours',
    perUnit: BYTES_PER_GIB * HOUR,
    price: 'storage_gib_hour_microcents',
    included: ({ included_storage_gib }, { hours }) => (included_storage_gib ?? 0) * hours,
  },
}

/** Converts a metered quantity to the metric's billing unit, for display. */
export function toBillingUnits(metric: Metric, quantity: bigint): number {
  return divideForDisplay(quantity, METRIC_DEFINITIONS[metric].perUnit)
}

/** The quantity of one metric in a calendar month. */
export type MonthQuantity = { readonly month: Month; readonly quantity: bigint }

/**
 * The cost of a metric in whole cents: the usage of each month beyond its allowance, times the price. The sum is
 * rounded half up once. 0 without prices.
 */
export function amountCents(metric: Metric, months: readonly MonthQuantity[], terms: BillingTerms): bigint {
  const { perUnit, price, included } = METRIC_DEFINITIONS[metric]
  const microcents = BigInt(terms.prices?.[price] ?? 0)
  const billable = months.reduce((sum, { month, quantity }) => {
    const beyond = quantity - BigInt(included(terms, month)) * perUnit
    return beyond > 0n ? sum + beyond : sum
  }, 0n)
  return divideHalfUp(billable * microcents, perUnit * MICROCENTS_PER_CENT)
}
const MICROCENTS_PER_CENT = 1_000_000n

/**
 * The expected total at the end of a period, if spending continues at the same rate. It equals the total if the period
 * is over or has not begun. It is never below the total.
 */
export function projectedCents(totalCents: bigint, { since, until }: TimeRange, now: Date): bigint {
  const passedMs = now.getTime() - since.getTime()
  const wholeMs = until.getTime() - since.getTime()
  if (passedMs <= 0 || passedMs >= wholeMs) return totalCents
  return divideHalfUp(totalCents * BigInt(wholeMs), BigInt(passedMs))
}

/** The quotient of non-negative whole numbers, rounded half up. */
export function divideHalfUp(dividend: bigint, divisor: bigint): bigint {
  return (2n * dividend + divisor) / (2n * divisor)
}

/**
 * The quotient as a double. The integer part and the remainder are divided separately, so that a large sum keeps its
 * fraction.
 */
export function divideForDisplay(dividend: bigint, divisor: bigint): number {
  return Number(dividend / divisor) + Number(dividend % divisor) / Number(divisor)
}
