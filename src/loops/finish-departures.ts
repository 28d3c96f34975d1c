import type { MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import { PLACEMENT_TOPIC, REAP_VOLUMES_TOPIC } from '../control/topics.ts'
import * as fleet from '../store/workers/fleet.ts'
import * as runsToStop from '../store/sandboxes/runs-to-stop.ts'
import { accrueStorage } from '../store/usage/accrue-storage.ts'
import type { Loop } from './loop.ts'
import { stopRuns, type RunsToStop } from './stop-runs.ts'

/** The maximum number of sandboxes, and of volumes, that one transaction frees. */
const BATCH = 500

/**
 * Finishes the departure of workers. It stops the runs of a worker whose drain deadline is over. It frees the sandboxes
 * and volumes of a removed worker once the worker's lease is over and its runs have ended. Until then, the worker may
 * still use them. At their next use, freed sandboxes and volumes are empty and on another worker.
 */
export function makeFinishDeparturesLoop(deps: MoveAllDeps): Loop {
  return { name: 'finish-departures', periodMs: 2_000, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: MoveAllDeps, signal: AbortSignal): Promise<null> {
  const now = deps.clock.now()
  const late: RunsToStop<runsToStop.RunToStop> = {
    read: (q, page) => runsToStop.pastDrainDeadline(q, now, page),
    causeOf: () => ({ code: 'drained', message: 'its worker is draining, and the deadline has passed' }),
  }
  await stopRuns(deps, late, signal)
  await freeAll(deps, now, signal)
  return null
}

async function freeAll(deps: MoveAllDeps, now: Date, signal: AbortSignal): Promise<void> {
  for (let freed = BATCH; freed === BATCH;) {
    signal.throwIfAborted()
    const { sandboxes, volumes } = await deps.db.transaction('system', async (tx) => {
      await deps.fence?.(tx)
      const homeless = await fleet.lockVolumesOfGoneWorkers(tx, now, BATCH)
      await accrueStorage(tx, 'volumes', homeless, now) // meters the storage up to now
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
