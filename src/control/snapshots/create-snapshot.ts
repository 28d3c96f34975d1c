import type { OrgActor } from '../../domain/orgs/caller.ts'
import { asId, type SandboxId, type SnapshotId, type SnapshotOperationId } from '../../domain/ids.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { Problem } from '../../domain/problem.ts'
import type { Snapshot } from '../../domain/snapshots/snapshot.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import * as snapshotSources from '../../store/snapshots/snapshot-sources.ts'
import type { BaseDeps, FenceDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from '../requests/idempotency.ts'
import { SNAPSHOTS_TOPIC } from '../topics.ts'
import { orgTransaction } from './org-transaction.ts'
import { storageRefusal } from './storage-refusal.ts'

export type CreateSnapshotDeps = WriteDeps & FenceDeps & Pick<BaseDeps, 'notifications'>

export type NewSnapshotInput = {
  readonly sandbox_id: SandboxId
  /** Null: the snapshot is for a fork. */
  readonly name: string | null
  readonly labels: Readonly<Record<string, string>>
  /** Whether it takes the place of a snapshot of that name, once it is complete. */
  readonly replaces: boolean
  readonly records_integrity: boolean
  /** Whether a label of the sandbox asked for it. Absent: no. */
  readonly is_scheduled?: boolean
  readonly attempt?: IdempotentAttempt | null
}

/**
 * Begins to make a snapshot of a sandbox's disk. The operation is durable before the call resolves. Throws `sandbox_not_found`,
 * `invalid_state_transition` for a sandbox without a disk, `snapshot_name_already_exists` and `quota_exceeded`.
 */
export async function createSnapshot(
  deps: CreateSnapshotDeps,
  caller: OrgActor,
  input: NewSnapshotInput,
): Promise<Snapshot> {
  const { org_id, actor } = caller
  const { attempt = null, is_scheduled = false, ...wanted } = input
  if (attempt !== null && attempt.savedNote !== null)
    return await madeByEarlierAttempt(deps, caller, asId<SnapshotOperationId>(attempt.savedNote))
  const source = await deps.db.asOrg(org_id, (q) => snapshotSources.find(q, org_id, input.sandbox_id))
  if (source === null) throw new Problem('sandbox_not_found')
  if (source.home_worker_id === null) throw hasNoDisk(source.status)
  const refusal = await deps.db.asOrg(org_id, (q) => storageRefusal(q, org_id))
  if (refusal !== null) throw refusal
  const operation_id = asId<SnapshotOperationId>(deps.uuids.next())
  const row: snapshots.NewSnapshot = {
    ...wanted,
    is_scheduled,
    id: asId<SnapshotId>(deps.uuids.next()),
    operation_id,
    org_id,
    sandbox_name: source.name,
    worker_id: source.home_worker_id,
    image: source.image,
    created_at: deps.clock.now(),
  }
  try {
    const made = await orgTransaction(deps, org_id, async (tx) => {
      await attempt?.saveNote(tx, operation_id)
      const inserted = await snapshots.insert(tx, row)
      if (inserted === null) throw tooManyOf('snapshots')
      const { id: snapshot_id, name, sandbox_id } = row
      if (name !== null) {
        const payload = { snapshot_id, name, sandbox_id }
        await recordEvent(deps, tx, { org_id, actor, event_type: 'snapshot_requested', payload })
      }
      return inserted
    })
    deps.notifications.publish([SNAPSHOTS_TOPIC])
    return made
  } catch (error) {
    if (violatedConstraint(error) === 'snapshots_name_key') throw nameTaken(input.name)
    throw error
  }
}

async function madeByEarlierAttempt(
  { db }: Pick<BaseDeps, 'db'>,
  { org_id }: OrgActor,
  id: SnapshotOperationId,
): Promise<Snapshot> {
  const found = await db.asOrg(org_id, (q) => snapshots.findByOperation(q, org_id, id))
  if (found === null) throw idempotencyReplyLost('the snapshot was made and is gone since')
  return found
}

/** The problem of a sandbox that was never placed on a worker. */
export function hasNoDisk(status: string): Problem {
  return new Problem('invalid_state_transition', {
    message: 'invalid state transition: the sandbox has no disk yet; start it first',
    details: { field: 'status', seen: status, accepted: ['running', 'stopped', 'failed'] },
  })
}

export function nameTaken(name: string | null): Problem {
  return new Problem('snapshot_name_already_exists', {
    details: { field: 'name', seen: name, accepted: 'a name that no snapshot has, or force true' },
  })
}
