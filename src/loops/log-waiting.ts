import type { BaseDeps } from '../control/deps.ts'
import { explainWaiting, type FleetReader } from '../control/workers/explain-waiting.ts'
import type { PlacementSettings } from '../control/sandboxes/placement/read-fleet.ts'
import { summarizeMissing } from '../domain/workers/summarize-missing.ts'
import * as waitingRuns from '../store/workers/waiting-runs.ts'
import type { Loop } from './loop.ts'

const PERIOD_MS = 60_000

type Deps = Pick<BaseDeps, 'db' | 'log'> & FleetReader & { readonly settings: PlacementSettings }

/** Logs once a minute how many sandboxes wait for capacity, which one waits the longest, and what it lacks. */
export function makeLogWaitingLoop(deps: Deps): Loop {
  return { name: 'log-waiting', periodMs: PERIOD_MS, topics: [], run: () => pass(deps) }
}

async function pass(deps: Deps): Promise<null> {
  const oldest = await deps.db.asSystem((q) => waitingRuns.oldestWaiting(q))
  const details = oldest === null ? null : await explainWaiting(deps, oldest.sandbox_id)
  if (oldest === null || details === null) return null
  const { waiting, missing } = details
  deps.log.info({ waiting, ...oldest, reason: summarizeMissing(missing) }, 'sandboxes wait for capacity')
  return null
}
