import type { Caller } from '../../domain/orgs/caller.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { asId, type VolumeId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Volume } from '../../domain/volumes/volume.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from '../requests/idempotency.ts'
import { recordEvent } from '../events/record-event.ts'
import { requireEnforceableCap } from './require-enforceable-cap.ts'

export type NewVolume = {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  readonly capacity_gib: number | null
  readonly attempt?: IdempotentAttempt | null
}

/**
 * Creates a managed volume. The volume is durable before the call resolves. It gets its home worker at its first use.
 * Throws `volume_already_exists`, also while a volume of that name is still being deleted. Throws `quota_exceeded`, and
 * the errors of `requireEnforceableCap`.
 */
export async function createVolume(deps: WriteDeps, caller: Caller, input: NewVolume): Promise<Volume> {
  const { name, labels, capacity_gib, attempt = null } = input
  const { org_id, actor } = caller
  if (attempt !== null && attempt.savedNote !== null)
    return await createdByEarlierAttempt(deps, caller, asId<VolumeId>(attempt.savedNote))
  if (capacity_gib !== null) {
    await requireEnforceableCap(deps, org_id, { capacity_gib, home: { home_worker_id: null, is_shared: false } })
  }
  const now = deps.clock.now()
  const id = asId<VolumeId>(deps.uuids.next())
  const times = { created_at: now, updated_at: now }
  const volume = { id, org_id, kind: 'managed', name, status: 'active', labels, capacity_gib, ...times } as const
  const payload = { volume_id: id, kind: 'managed', name, ...(capacity_gib === null ? {} : { capacity_gib }) }
  try {
    await deps.db.transaction(org_id, async (tx) => {
      await attempt?.saveNote(tx, id)
      if (!(await volumes.insert(tx, volume))) throw tooManyOf('volumes')
      await recordEvent(deps, tx, { org_id, actor, event_type: 'volume_created', payload })
    })
  } catch (error) {
    if (violatedConstraint(error) === 'volumes_name_key') throw await nameTaken(deps, caller, name)
    throw error
  }
  return { ...volume, used_bytes: null }
}

/** The volume that an earlier attempt created, in its current state. */
async function createdByEarlierAttempt(deps: Pick<BaseDeps, 'db'>, { org_id }: Caller, id: VolumeId): Promise<Volume> {
  const found = await deps.db.asOrg(org_id, (q) => volumes.find(q, org_id, id))
  if (found === null) throw idempotencyReplyLost('the volume was created and is gone since')
  return found
}

async function nameTaken(deps: Pick<BaseDeps, 'db'>, caller: Caller, name: string): Promise<Problem> {
  const holder = await deps.db.asOrg(caller.org_id, (q) => volumes.findByName(q, caller.org_id, name))
  const isLeaving = holder?.status === 'deleting'
  return new Problem('volume_already_exists', {
    message: `'name' already exists${isLeaving ? ': the volume of that name is still being deleted' : ''}`,
    details: {
      field: 'name',
      seen: name,
      accepted: isLeaving ? 'the same name once that volume is gone' : 'a name that no volume has',
    },
  })
}
