import type { ObservedRun } from '../../contract/workers/worker-protocol.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { BaseDeps } from '../deps.ts'
import type { EventObserver } from '../sandboxes/transitions/transition.ts'
import { recordEvent } from '../events/record-event.ts'

/**
 * Records an audit event for each run of which the kernel killed more processes than before because memory ran out. May be
 * repeated: the run stores the number that the last event told.
 */
export async function recordMemoryKills(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids'> & EventObserver,
  open: readonly runs.OpenRunOfWorker[],
  observed: readonly ObservedRun[],
): Promise<void> {
  const known = new Map(open.map((run) => [run.run_id, run.memory_kills]))
  for (const { run_id, memory_kills = 0 } of observed) {
    if (memory_kills <= (known.get(run_id) ?? Infinity)) continue
    const recorded = await deps.db.transaction('system', async (tx) => {
      const raised = await runs.raiseMemoryKills(tx, run_id, memory_kills)
      if (raised === null) return null
      const { org_id, ...payload } = raised
      return await recordEvent(deps, tx, {
        org_id,
        actor: SYSTEM_ACTOR,
        event_type: 'sandbox_out_of_memory',
        payload: { ...payload, killed: memory_kills },
      })
    })
    if (recorded !== null) deps.onEvents?.([recorded])
  }
}
