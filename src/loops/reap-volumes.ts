import { recordEvent } from '../control/events/record-event.ts'
import type { FenceDeps, WriteDeps } from '../control/deps.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import { REAP_VOLUMES_TOPIC } from '../control/topics.ts'
import * as volumeReports from '../store/volumes/volume-reports.ts'
import type { Loop } from './loop.ts'

type ReapDeps = WriteDeps & FenceDeps

/** The maximum number of volumes that one transaction deletes. */
const BATCH = 100

/** Deletes the rows of volumes that are being deleted, once no worker stores their files. Their names are then free. */
export function makeReapVolumesLoop(deps: ReapDeps): Loop {
  return { name: 'reap-volumes', periodMs: 5_000, topics: [REAP_VOLUMES_TOPIC], run: (signal) => pass(deps, signal) }
}

async function pass(deps: ReapDeps, signal: AbortSignal): Promise<null> {
  for (let reaped = BATCH; reaped === BATCH;) {
    signal.throwIfAborted()
    reaped = await deps.db.transaction('system', async (tx) => {
      await deps.fence?.(tx)
      const gone = await volumeReports.reap(tx, BATCH)
      for (const { id, org_id, name } of gone)
        await recordEvent(deps, tx, {
          org_id,
          actor: SYSTEM_ACTOR,
          event_type: 'volume_deleted',
          payload: { volume_id: id, name },
        })
      return gone.length
    })
  }
  return null
}
