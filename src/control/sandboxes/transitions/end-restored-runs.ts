import { SYSTEM_ACTOR } from '../../../domain/orgs/caller.ts'
import type { WorkerId } from '../../../domain/ids.ts'
import * as runs from '../../../store/sandboxes/runs.ts'
import * as snapshotWork from '../../../store/snapshots/snapshot-work.ts'
import { accrueStorage, skipStorage as skip } from '../../../store/usage/accrue-storage.ts'
import * as volumeReports from '../../../store/volumes/volume-reports.ts'
import { hashSecret } from '../../../domain/orgs/api-key.ts'
import * as workers from '../../../store/workers/workers.ts'
import { moveAll, type MoveAllDeps } from './transition-batches.ts'

/** What `endRestoredRuns` found. */
export type RestoredRuns = { readonly ended: number }

/**
 * Ends the runs that the worker with this credential had when a backup was made, as of that time: `deps.clock` must stand
 * still there. They ran on, but not in the restored installation. Neither runs nor volumes are billed for the time until
 * `restoredAt`. Runs of other workers stay open, because those workers know what became of them.
 */
export async function endRestoredRuns(
  deps: MoveAllDeps,
  { credential, restoredAt }: { readonly credential: string; readonly restoredAt: Date },
): Promise<RestoredRuns> {
  const takenAt = deps.clock.now()
  const [worker] = await deps.db.asSystem((q) => workers.findByCredentials(q, [hashSecret(credential)]))
  if (worker === undefined || worker === null) return { ended: 0 }
  const open = await deps.db.asSystem((q) => runs.ofWorker(q, worker.id))
  const message = `it ran when the backup of ${takenAt.toISOString()} was made, from which the installation was restored`
  const failed = await moveAll(
    deps,
    open.map(({ run_id, sandbox_id }) => ({
      sandbox_id,
      run_id,
      event: 'worker_lost',
      outcome: { kind: 'lost', message },
      cause: { actor: SYSTEM_ACTOR, code: 'restored', message },
    })),
  )
  if (failed > 0) throw new Error(`${String(failed)} runs of the backup could not be ended`)
  await skipStorage(deps, worker.id, { takenAt, restoredAt })
  return { ended: open.length }
}

async function skipStorage(
  { db }: Pick<MoveAllDeps, 'db'>,
  worker: WorkerId,
  { takenAt, restoredAt }: { readonly takenAt: Date; readonly restoredAt: Date },
): Promise<void> {
  await db.transaction('system', async (tx) => {
    const ofWorker = {
      volumes: await volumeReports.lockOfWorker(tx, worker),
      snapshots: await snapshotWork.lockOfWorker(tx, worker),
    }
    for (const holder of ['volumes', 'snapshots'] as const) {
      await accrueStorage(tx, holder, ofWorker[holder], takenAt)
      await skip(tx, holder, ofWorker[holder], restoredAt)
    }
  })
}
