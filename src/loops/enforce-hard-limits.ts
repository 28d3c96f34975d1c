import { recordHoursExhausted } from '../control/usage/record-hours-exhausted.ts'
import type { TransitionDeps } from '../control/sandboxes/transition.ts'
import { exhaustedHours, remainingUnits, INCLUDED_HOURS, type ComputeUse } from '../domain/orgs/quota.ts'
import type { Log } from '../lib/log.ts'
import * as includedHours from '../store/usage/included-hours.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import { hardLimitedMonthTotals } from '../store/usage/usage.ts'
import type { Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

const PERIOD_MS = 5_000
/** How many organizations are looked at together. */
const PAGE = 200

type HardLimitDeps = TransitionDeps & { readonly log: Log }

/**
 * Stops what runs in suspended organizations, and in those whose plan has no prices and whose pool of the month is used
 * up: a wall is met within a moment of the time that its runs reach it.
 */
export function enforceHardLimits(deps: HardLimitDeps): Loop {
  return { name: 'enforce-pools', periodMs: PERIOD_MS, topics: ['quotas'], run: (signal) => pass(deps, signal) }
}

async function pass(deps: HardLimitDeps, signal: AbortSignal): Promise<number | null> {
  await stopRuns(deps, { read: runsToStop.ofSuspendedOrgs, causeOf: () => ({ code: 'suspended' }) }, signal)
  let dueMs = Infinity
  const totals = await deps.db.asSystem((q) => hardLimitedMonthTotals(q, deps.clock.now()))
  const useOf = new Map<string, ComputeUse>(totals.map((use) => [use.org_id, use]))
  for (let after: includedHours.HardLimitedOrg | null = null; ;) {
    const last: includedHours.HardLimitedOrg | null = after
    const page: readonly includedHours.HardLimitedOrg[] = await deps.db.asSystem((q) =>
      includedHours.hardLimitedWithRuns(q, last?.org_id ?? null, PAGE),
    )
    dueMs = Math.min(dueMs, await enforceOn(deps, { orgs: page, useOf }, signal))
    after = page.at(-1) ?? null
    if (after === null || page.length < PAGE) return Number.isFinite(dueMs) ? dueMs : null
  }
}

/** Answers in how many milliseconds the next wall is met, or Infinity. */
async function enforceOn(
  deps: HardLimitDeps,
  {
    orgs,
    useOf,
  }: { readonly orgs: readonly includedHours.HardLimitedOrg[]; readonly useOf: ReadonlyMap<string, ComputeUse> },
  signal: AbortSignal,
): Promise<number> {
  let dueMs = Infinity
  for (const org of orgs) {
    const use = useOf.get(org.org_id) ?? NO_USE
    const exhausted = exhaustedHours(org, use)
    if (exhausted.length === 0) {
      dueMs = Math.min(dueMs, untilHardLimitMs(org, use))
      continue
    }
    for (const pool of exhausted) await recordHoursExhausted(deps, org.org_id, { pool, pools: org, use })
    const active: RunsToStop<runsToStop.RunToStop> = {
      read: (q, page) => runsToStop.ofOrg(q, org.org_id, page),
      causeOf: () => ({ code: 'pool_exhausted' }),
    }
    await stopRuns(deps, active, signal)
  }
  return dueMs
}

const NO_USE: ComputeUse = { vcpu_ms: 0n, memory_mib_ms: 0n }

/** When the runs that run now reach a wall, in milliseconds, if nothing changes. */
function untilHardLimitMs(org: includedHours.HardLimitedOrg, use: ComputeUse): number {
  const rates = { included_vcpu_hours: org.vcpus, included_memory_gib_hours: org.memory_mib }
  const times = INCLUDED_HOURS.flatMap((pool) => {
    const left = remainingUnits(pool, org, use)
    return left === null || rates[pool] === 0 ? [] : [Math.ceil(Number(left) / rates[pool])]
  })
  return Math.min(Infinity, ...times)
}
