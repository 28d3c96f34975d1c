import type { Caller } from '../../domain/orgs/caller.ts'
import { asId, type OrgId, type SandboxId } from '../../domain/ids.ts'
import type { Problem } from '../../domain/problem.ts'
import { decodeCursor, encodeCursor } from '../../domain/requests/cursor.ts'
import { daysOf, halvesOf, monthOf, monthsOf, type TimeRange } from '../../domain/usage/metering.ts'
import {
  amountCents, divideForDisplay, divideHalfUp, toBillingUnits, METRIC_DEFINITIONS, METRICS, projectedCents, type Metric, type Quantities,
} from '../../domain/usage/pricing.ts' // prettier-ignore
import { refusalProblem } from '../../domain/refusal.ts'
import { refuseDeletedUsage, type ReportKind } from '../../domain/usage/kept-range.ts'
import { resolveUsageRange, type RequestedRange } from '../../domain/usage/usage-range.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as retentionHorizons from '../../store/usage/retention-horizons.ts'
import * as storageUsage from '../../store/usage/storage-usage.ts'
import { renderSandboxDays, type DayPosition, type PageOfDays } from '../../store/usage/sandbox-days.ts'
import * as usage from '../../store/usage/usage.ts'
import type { BaseDeps } from '../deps.ts'
import type { PageInput } from '../requests/page.ts'

/** The maximum number of rows in one breakdown. It is enough for a year of a thousand sandboxes that ran every day. */
export const USAGE_ROWS_MAX = 400_000

type UsageDeps = Pick<BaseDeps, 'db' | 'clock'>

/**
 * The metered usage of a range and its cost, as `UsageSummaryReply`. Throws `invalid_request` for a bad range, and for one
 * with a part of a day whose runs are deleted.
 */
export async function getUsage(deps: UsageDeps, caller: Pick<Caller, 'org_id'>, requested: RequestedRange) {
  const query = usageQueryOf(deps, caller.org_id, requested)
  const { range, now } = query
  const { terms, daily, heldBytes } = await deps.db.asOrg(caller.org_id, async (q) => {
    const read = {
      terms: await storageUsage.pricingTermsOf(q, caller.org_id),
      daily: await quantitiesByDay(q, query),
      heldBytes: await storageUsage.heldBytes(q, caller.org_id),
    }
    await requireKept(q, range, 'org')
    return read
  })
  if (terms === null) throw new Error(`organization ${caller.org_id} does not exist`)
  const items = METRICS.map((metric) => {
    const months = monthsOf(range).map((month) => ({ month, quantity: sumOf(daily, metric, month.month) }))
    const total = months.reduce((sum, { quantity }) => sum + quantity, 0n)
    return { metric, total, cents: amountCents(metric, months, terms) }
  })
  const totalCents = items.reduce((sum, { cents }) => sum + cents, 0n)
  const metered = { since: range.since, until: range.until < now ? range.until : now }
  return {
    period_start: range.since,
    period_end: range.until,
    line_items: items.map(({ metric, total, cents }) => ({
      name: METRIC_DEFINITIONS[metric].name,
      quantity: toBillingUnits(metric, total),
      unit: METRIC_DEFINITIONS[metric].unit,
      amount_cents: Number(cents),
    })),
    daily: daysOf(metered).flatMap((day) =>
      METRICS.map((metric) => ({
        date: midnightOf(day),
        metric: METRIC_DEFINITIONS[metric].name,
        quantity: toBillingUnits(metric, daily.get(day)?.[metric] ?? 0n),
      })),
    ),
    total_cents: Number(totalCents),
    projected_spend_cents: Number(projectedCents(totalCents, range, now)),
    storage_gib: heldBytes === null ? null : divideForDisplay(heldBytes, BYTES_PER_GIB),
  }
}
const BYTES_PER_GIB = 1024n ** 3n

/** A range, and the page of its rows. Null: all rows at once. */
export type BreakdownInput = RequestedRange & { readonly page: PageInput | null }

/** The rows of a report by sandbox and day, as the JSON text of list items in pieces, with the names of their sandboxes. */
type SandboxBreakdown = {
  readonly items: readonly Buffer[]
  readonly sandboxes: readonly usage.SandboxName[]
  readonly nextCursor: string | null
}

/** How many rows are read at a time: some 2 MB of text. */
export const BREAKDOWN_PAGE_MAX = 10_000

/**
 * Usage by sandbox and day, in this order, with the names of the sandboxes, including deleted ones. Throws `invalid_request` for a bad
 * range or cursor, for a range whose usage is deleted, and without a page for one with more than `USAGE_ROWS_MAX` rows.
 */
export async function getSandboxBreakdown(
  deps: UsageDeps,
  { org_id }: Pick<Caller, 'org_id'>,
  requested: BreakdownInput,
): Promise<SandboxBreakdown> {
  const query = usageQueryOf(deps, org_id, requested)
  const { page } = requested
  if (page === null) return readAllPages(deps, query)
  const { next, ...read } = await readPage(deps, query, {
    after: page.cursor === null ? null : positionIn(page.cursor),
    limit: page.limit,
    range: query.range,
  })
  return { ...read, nextCursor: next === null ? null : encodeCursor('usage_by_sandbox', positionText(next)) }
}

/**
 * Reads all pages of a range. Writing their text is the work of one processor for each connection. So both halves of the range are read at
 * once, while no other organization needs the second processor.
 */
async function readAllPages(deps: UsageDeps, query: usage.UsageQuery): Promise<SandboxBreakdown> {
  let count = 0
  const halves = halvesOf(query.range).map((range): Half => ({ range, pages: [] }))
  const readHalf = async (half: Half, mayGoOn: () => boolean): Promise<void> => {
    while (half.pages.at(-1)?.next !== null && mayGoOn()) {
      const after = half.pages.at(-1)?.next ?? null
      const page = await readPage(deps, query, { after, limit: BREAKDOWN_PAGE_MAX, range: half.range })
      count += page.count
      if (count > USAGE_ROWS_MAX) throw tooManyRows(query.range)
      half.pages.push(page)
    }
  }
  const isAlone = (): boolean => !deps.db.isAmongOthers(query.org_id)
  const always = (): boolean => true
  await Promise.all(halves.map((half, nth) => readHalf(half, nth === 0 ? always : isAlone)))
  for (const half of halves) await readHalf(half, always)
  const pages = halves.flatMap((half) => half.pages)
  const names = new Map(pages.flatMap(({ sandboxes }) => sandboxes.map((sandbox) => [sandbox.id, sandbox])))
  const sandboxes = [...names.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1))
  return { items: pages.flatMap(({ items }) => items), sandboxes, nextCursor: null }
}

/** A half of a range, and its pages that are read already. */
type Half = { readonly range: TimeRange; readonly pages: ReadPage[] }

type ReadPage = Omit<SandboxBreakdown, 'nextCursor'> & { readonly count: number; readonly next: DayPosition | null }

/** Reads a page of a part of the range. Throws as for the whole range if usage is deleted. */
async function readPage(
  { db }: UsageDeps,
  query: usage.UsageQuery,
  { range, ...page }: PageOfDays & { readonly range: TimeRange },
): Promise<ReadPage> {
  return db.asOrg(query.org_id, async (q) => {
    // The database runs them in this order, in one round trip.
    const [{ items, ...read }] = await Promise.all([
      renderSandboxDays(q, { ...query, range }, page),
      requireKept(q, query.range, 'sandboxes'),
    ])
    return { ...read, items: items.map((text) => Buffer.from(text, 'latin1')) }
  })
}

function positionText({ day, sandbox_id }: DayPosition): string {
  return `${day} ${sandbox_id}`
}

function positionIn(cursor: string): DayPosition {
  const [day = '', id = ''] = decodeCursor('usage_by_sandbox', cursor).split(' ')
  return { day, sandbox_id: asId<SandboxId>(id) }
}

/**
 * Storage usage by volume and day, with the names of volumes that still exist. Throws for the same reasons as
 * `getSandboxBreakdown`.
 */
export async function getStorageBreakdown(
  deps: UsageDeps,
  { org_id }: Pick<Caller, 'org_id'>,
  requested: RequestedRange,
) {
  const query = usageQueryOf(deps, org_id, requested)
  return deps.db.asOrg(org_id, async (q) => {
    const days = atMost(await storageUsage.volumeDays(q, query, USAGE_ROWS_MAX + 1), query.range)
    await requireKept(q, query.range, 'volumes')
    const rows = days.map(({ volume_id, day, before_byte_ms, until_byte_ms }) => {
      const mibSeconds = divideHalfUp(until_byte_ms, MIB_SECOND) - divideHalfUp(before_byte_ms, MIB_SECOND)
      return { volume_id, day: midnightOf(day), mib_seconds: Number(mibSeconds) }
    })
    const ids = [...new Set(rows.map(({ volume_id }) => volume_id))]
    return { rows, volumes: await storageUsage.volumeNames(q, org_id, ids) }
  })
}
/** One MiB-second, in bytes times milliseconds. */
const MIB_SECOND = 1024n ** 2n * 1000n

/** UTC midnight of a day such as `2028-02-29`, in the format of replies. */
export function midnightOf(day: string): string {
  return `${day}T00:00:00Z`
}

/** The query for a report over the requested range. Throws `invalid_request` for a bad range. */
export function usageQueryOf(
  { clock }: Pick<UsageDeps, 'clock'>,
  org_id: OrgId,
  requested: RequestedRange,
): usage.UsageQuery {
  const now = clock.now()
  const chosen = resolveUsageRange(requested, now)
  if (chosen.kind === 'refused') throw refusalProblem(chosen.refusal)
  return { org_id, range: chosen.range, now }
}

/**
 * Throws `invalid_request` if rows of a report may be deleted. Call it after the rows are read, because they may be
 * deleted meanwhile.
 */
export async function requireKept(q: Queryable, range: TimeRange, kind: ReportKind): Promise<void> {
  const refusal = refuseDeletedUsage(range, kind, await retentionHorizons.find(q))
  if (refusal !== null) throw refusalProblem(refusal)
}

async function quantitiesByDay(q: Queryable, question: usage.UsageQuery): Promise<ReadonlyMap<string, Quantities>> {
  const compute = await usage.orgDays(q, question)
  const storage = await storageUsage.storageDays(q, question)
  const days = new Map<string, Quantities>()
  for (const { day, vcpu_ms, memory_mib_ms, disk_mib_ms } of compute)
    days.set(day, { vcpu: vcpu_ms, memory: memory_mib_ms, disk: disk_mib_ms, storage: 0n })
  for (const { day, byte_ms } of storage)
    days.set(day, { ...(days.get(day) ?? { vcpu: 0n, memory: 0n, disk: 0n }), storage: byte_ms })
  return days
}

function sumOf(days: ReadonlyMap<string, Quantities>, metric: Metric, month: string): bigint {
  let sum = 0n
  for (const [day, quantities] of days) if (monthOf(day) === month) sum += quantities[metric]
  return sum
}

function atMost<Row>(rows: readonly Row[], { since }: Pick<TimeRange, 'since'>): readonly Row[] {
  if (rows.length <= USAGE_ROWS_MAX) return rows
  throw tooManyRows({ since })
}

function tooManyRows({ since }: Pick<TimeRange, 'since'>): Problem {
  const accepted = `a range with at most ${String(USAGE_ROWS_MAX)} rows`
  return refusalProblem({ code: 'invalid_request', field: 'query.since', seen: since.toISOString(), accepted })
}
