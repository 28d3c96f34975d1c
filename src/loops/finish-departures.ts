import type { TransitionDeps } from '../control/sandboxes/transition.ts'
import { PLACEMENT_TOPIC, REAP_VOLUMES_TOPIC } from '../control/topics.ts'
import type { Log } from '../lib/log.ts'
import * as fleet from '../store/workers/fleet.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import * as volumeReports from '../store/volumes/volume-reports.ts'
import type { Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

type DepartureDeps = TransitionDeps & { readonly log: Log }

/** The most sandboxes or volumes that one transaction frees. */
const BATCH = 500

/**
 * Finishes the departure of workers. It stops the runs of a worker whose drain deadline is over. It frees the sandboxes
 * and volumes of a removed worker once the worker's lease is over and its runs have ended. Before that, the worker may
 * still run them. Freed sandboxes and volumes start empty on another worker.
 */
export function finishDepartures(deps: DepartureDeps): Loop {
  return { name: 'finish-departures', periodMs: 2_000, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: DepartureDeps, signal: AbortSignal): Promise<null> {
  const now = deps.clock.now()
  const late: RunsToStop<runsToStop.RunToStop> = {
    read: (q, page) => runsToStop.pastDrainDeadline(q, now, page),
    causeOf: () => ({ code: 'drained', message: 'its worker drains, and the deadline is over' }),
  }
  await stopRuns(deps, late, signal)
  await freeAll(deps, now, signal)
  return null
}

async function freeAll(deps: DepartureDeps, now: Date, signal: AbortSignal): Promise<void> {
  for (let freed = BATCH; freed === BATCH;) {
    signal.throwIfAborted()
    const { sandboxes, volumes } = await deps.db.transaction('system', async (tx) => {
      await deps.fence?.(tx)
      const homeless = await fleet.lockVolumesOfGoneWorkers(tx, now, BATCH)
      await volumeReports.accrue(tx, homeless, now) // meters the storage up to now
      await fleet.detachVolumes(tx, homeless)
      return { sandboxes: await fleet.detachSandboxes(tx, now, BATCH), volumes: homeless.length }
    })
    freed = Math.max(sandboxes, volumes)
    if (freed > 0) deps.log.info({ sandboxes, volumes }, 'freed the sandboxes and volumes of removed workers')
    deps.notifications.publish([
      ...(sandboxes + volumes > 0 ? [PLACEMENT_TOPIC] : []),
      ...(volumes > 0 ? [REAP_VOLUMES_TOPIC] : []),
    ])
  }
}
