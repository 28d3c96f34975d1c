import type { Config } from '../../config.ts'
import type { LeaderFence } from '../../control/deps.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import { makeAddUpCountsLoop } from '../../loops/add-up-counts.ts'
import type { Loop } from '../../loops/loop.ts'
import { makeDetectLostWorkersLoop } from '../../loops/detect-lost-workers.ts'
import { makeEnforceDeadlinesLoop } from '../../loops/enforce-deadlines.ts'
import { makeEnforceHardLimitsLoop } from '../../loops/enforce-hard-limits.ts'
import { makeLogWaitingLoop } from '../../loops/log-waiting.ts'
import { makePlacePendingLoop } from '../../loops/place-pending.ts'
import { makeReapVolumesLoop } from '../../loops/reap-volumes.ts'
import { makeSnapshotsLoop } from '../../loops/make-snapshots.ts'
import { makeScheduleSnapshotsLoop } from '../../loops/schedule-snapshots.ts'
import { makeFinishDeparturesLoop } from '../../loops/finish-departures.ts'
import {
  makePruneIdempotencyKeysLoop,
  makePruneJoinTokensLoop,
  makePruneSessionsLoop,
  makePruneStreamTicketsLoop,
} from '../../loops/prune.ts'
import { makePruneExpiredLoop, type Retention } from '../../loops/prune-expired.ts'
import { makePruneWebhookDeliveriesLoop } from '../../loops/prune-webhook-deliveries.ts'
import { makeRestartEndedLoop } from '../../loops/restart-ended.ts'
import { makeRollUpUsageLoop } from '../../loops/roll-up-usage.ts'

/**
 * The loops that only the leader runs. Each transaction that changes a sandbox's state or deletes a volume first checks
 * that this process still leads.
 */
export function loopsOf(
  deps: ControlDeps & { readonly fence: LeaderFence; readonly retention: Retention },
): readonly Loop[] {
  return [
    makePlacePendingLoop(deps),
    makeLogWaitingLoop(deps),
    makeEnforceDeadlinesLoop(deps),
    makeEnforceHardLimitsLoop(deps),
    makeDetectLostWorkersLoop(deps),
    makeReapVolumesLoop(deps),
    makeSnapshotsLoop(deps),
    makeScheduleSnapshotsLoop(deps),
    makeFinishDeparturesLoop(deps),
    makeRestartEndedLoop(deps),
    makeAddUpCountsLoop(deps),
    makeRollUpUsageLoop(deps), // safe to run twice at once, because it locks the rows that it adds up
    makePruneStreamTicketsLoop(deps),
    makePruneIdempotencyKeysLoop(deps),
    makePruneJoinTokensLoop(deps),
    makePruneSessionsLoop(deps),
    makePruneExpiredLoop(deps),
    makePruneWebhookDeliveriesLoop(deps),
  ]
}

/** How long rows are kept, from the settings. */
export function retentionOf(config: Config): Retention {
  return {
    sandboxes: config.keepSandboxesDays,
    runs: config.keepRunsDays,
    events: config.keepEventsDays,
    usage: config.keepUsageDays,
  }
}
