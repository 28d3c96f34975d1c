import type { WorkerId } from '../../domain/ids.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import { isPressureAtLeast, type WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import * as workerDisks from '../../store/workers/worker-disks.ts'
import type { BaseDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'

/**
 * Records audit events when a worker's disk becomes short, and when it is no longer: one for each organization that has a
 * sandbox on the worker. May be repeated: the worker's row stores what the last events told.
 */
export async function recordDiskPressure(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids'>,
  worker: WorkerId,
  { disk, wasShort }: { readonly disk: WorkerDisk | undefined; readonly wasShort: boolean },
): Promise<void> {
  if (disk === undefined) return
  const isShort = isPressureAtLeast(disk.pressure, 'short')
  if (isShort === wasShort) return
  await deps.db.transaction('system', async (tx) => {
    const name = await workerDisks.setShort(tx, worker, isShort)
    if (name === null) return
    const { free_mib, reserve_mib } = disk
    const payload = { worker: name, free_mib, reserve_mib }
    const event_type = isShort ? 'worker_disk_short' : 'worker_disk_freed'
    for (const org_id of await workerDisks.orgsOn(tx, worker))
      await recordEvent(deps, tx, { org_id, actor: SYSTEM_ACTOR, event_type, payload })
  })
}
