import { recordEvent } from '../control/events/record-event.ts'
import type { MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import { QUOTAS_TOPIC } from '../control/topics.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import {
  exhaustedHours,
  hoursUsed,
  INCLUDED_HOURS,
  remainingUnitMs,
  type ComputeUse,
  type IncludedHoursName,
} from '../domain/orgs/quota.ts'
import { startOfMonth } from '../domain/usage/metering.ts'
import * as orgs from '../store/orgs/orgs.ts'
import * as includedHours from '../store/usage/included-hours.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import { hardLimitedMonthTotals } from '../store/usage/usage.ts'
import type { Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

const PERIOD_MS = 5_000
/** How many organizations are read at once. */
const PAGE = 200

/**
 * Stops the runs of suspended organizations. On a plan without prices, it also stops the runs of organizations that
 * have used up the included hours of the month. A pass computes when the current runs will have used up the hours. The
 * next pass starts at that time, so a run is stopped only moments late.
 */
export function makeEnforceHardLimitsLoop(deps: MoveAllDeps): Loop {
  return {
    name: 'enforce-hard-limits',
    periodMs: PERIOD_MS,
    topics: [QUOTAS_TOPIC],
    run: (signal) => pass(deps, signal),
  }
}

async function pass(deps: MoveAllDeps, signal: AbortSignal): Promise<number | null> {
  await stopRuns(deps, { read: runsToStop.ofSuspendedOrgs, causeOf: () => ({ code: 'suspended' }) }, signal)
  let dueMs = Infinity
  const now = deps.clock.now()
  const totals = await deps.db.asSystem((q) => hardLimitedMonthTotals(q, now))
  const useOf = new Map<string, ComputeUse>(totals.map((use) => [use.org_id, use]))
  for (let after: includedHours.HardLimitedOrg | null = null; ;) {
    const last: includedHours.HardLimitedOrg | null = after
    const page: readonly includedHours.HardLimitedOrg[] = await deps.db.asSystem((q) =>
      includedHours.findHardLimitedOrgsWithRuns(q, last?.org_id ?? null, PAGE),
    )
    for (const org of page)
      dueMs = Math.min(dueMs, await enforceOn(deps, { org, use: useOf.get(org.org_id) ?? NO_USE, now }, signal))
    after = page.at(-1) ?? null
    if (after === null || page.length < PAGE) return Number.isFinite(dueMs) ? dueMs : null
  }
}

const NO_USE: ComputeUse = { vcpu_ms: 0n, memory_mib_ms: 0n }

type OrgUse = { readonly org: includedHours.HardLimitedOrg; readonly use: ComputeUse }
/** `use`: the hours of the month of `now`. */
type UseOfMonth = OrgUse & { readonly now: Date }

/**
 * Stops the runs of an organization if any of its included hours are used up, and resolves with Infinity. Otherwise
 * resolves with the time until they are used up, in milliseconds.
 */
async function enforceOn(deps: MoveAllDeps, { org, use, now }: UseOfMonth, signal: AbortSignal): Promise<number> {
  const exhausted = exhaustedHours(org, use)
  if (exhausted.length === 0) return untilHardLimitMs({ org, use })
  if (startOfMonth(deps.clock.now()) > startOfMonth(now)) return 0 // another month has begun, and with it other hours
  for (const name of exhausted) await recordExhausted(deps, { org, use }, name)
  const active: RunsToStop<runsToStop.RunToStop> = {
    read: (q, page) => runsToStop.ofOrg(q, org.org_id, page),
    causeOf: () => ({ code: 'pool_exhausted' }),
  }
  await stopRuns(deps, active, signal)
  return Infinity
}

/**
 * Records the event that the included hours `name` are used up. In each UTC month there is only one such event, even if
 * several processes call this function repeatedly.
 */
async function recordExhausted(deps: MoveAllDeps, { org, use }: OrgUse, name: IncludedHoursName): Promise<void> {
  const { org_id } = org
  await deps.db.transaction('system', async (tx) => {
    await orgs.lock(tx, org_id)
    if (await includedHours.hasExhaustedEvent(tx, org_id, name, deps.clock.now())) return
    const payload = { pool: name, included_hours: org[name] ?? 0, used_hours: hoursUsed(name, use) }
    await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type: 'pool_exhausted', payload })
  })
}

/** The time until the current runs have used up some of the included hours if nothing changes, in milliseconds. */
function untilHardLimitMs({ org, use }: OrgUse): number {
  const unitsPerMs = { included_vcpu_hours: org.vcpus, included_memory_gib_hours: org.memory_mib }
  const times = INCLUDED_HOURS.flatMap((name) => {
    const left = remainingUnitMs(name, org, use)
    return left === null || unitsPerMs[name] === 0 ? [] : [Math.ceil(Number(left) / unitsPerMs[name])]
  })
  return Math.min(Infinity, ...times)
}
