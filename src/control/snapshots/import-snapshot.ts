import { tooManyOf } from '../../domain/org-maxima.ts'
import type { TakenSnapshot } from '../../contract/snapshots/snapshot-protocol.ts'
import { asId, type SandboxId, type SnapshotId, type SnapshotOperationId, type WorkerId } from '../../domain/ids.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import * as snapshotWork from '../../store/snapshots/snapshot-work.ts'
import type { WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { nameTaken } from './create-snapshot.ts'
import { resultOf } from './snapshot-result.ts'

export type ImportedSnapshot = {
  readonly id: SnapshotId
  readonly name: string
  /** The name of the sandbox of which it is a snapshot. */
  readonly sandbox_name: string
  /** The worker with the data. */
  readonly worker_id: WorkerId
  readonly facts: TakenSnapshot
  /** Puts the data into use. */
  readonly commit: () => Promise<void>
}

/**
 * Adds a complete snapshot whose data came from elsewhere. Its sandbox has a new id, which no sandbox has. Throws
 * `snapshot_name_already_exists` and `quota_exceeded`.
 */
export async function importSnapshot(
  deps: WriteDeps,
  { org_id, actor }: OrgActor,
  { id, name, sandbox_name, worker_id, facts, commit }: ImportedSnapshot,
): Promise<void> {
  const sandbox_id = asId<SandboxId>(deps.uuids.next())
  const operation_id = asId<SnapshotOperationId>(deps.uuids.next())
  const of = { sandbox_id, sandbox_name, worker_id, image: facts.image_reference, labels: {} }
  const how = { replaces: false, records_integrity: false, is_scheduled: false, created_at: deps.clock.now() }
  try {
    await deps.db.transaction(org_id, async (tx) => {
      const inserted = await snapshots.insert(tx, { id, operation_id, org_id, name, ...of, ...how })
      if (inserted === null) throw tooManyOf('snapshots')
      await snapshotWork.complete(tx, id, resultOf(inserted, facts, deps.clock.now()))
      const payload = { snapshot_id: id, name, sandbox_id, size_bytes: facts.taken_bytes }
      await recordEvent(deps, tx, { org_id, actor, event_type: 'snapshot_created', payload })
      await commit()
    })
  } catch (error) {
    if (violatedConstraint(error) === 'snapshots_name_key') throw nameTaken(name)
    throw error
  }
}
