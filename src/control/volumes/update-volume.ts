import type { Caller } from '../../domain/orgs/caller.ts'
import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import type { VolumeId } from '../../domain/ids.ts'
import { renderVolume, type Volume } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import type { BaseDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { requireEnforceableCap } from './require-enforceable-cap.ts'
import { volumeTopics } from '../topics.ts'

export type VolumeChange = {
  /** Undefined leaves the cap unchanged. Null removes it. */
  readonly capacity_gib?: number | null
  /** Replaces all labels. */
  readonly labels?: Readonly<Record<string, string>>
  readonly ifMatch?: IfMatch | null
}

/**
 * Changes the cap or the labels of a volume. Its worker applies a new cap at once. May be repeated. Throws
 * `volume_not_found` for an unknown volume, and `default_volume_protected` for a cap on the
 * default volume. Throws `invalid_state_transition` for a volume that is being deleted, `precondition_failed`, and the
 * errors of `requireEnforceableCap`.
 */
export async function updateVolume(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'notifications'>,
  caller: Caller,
  id: VolumeId,
  change: VolumeChange,
): Promise<Volume> {
  const { org_id } = caller
  const before = await deps.db.asOrg(org_id, (q) => volumes.find(q, org_id, id))
  if (before === null) throw new Problem('volume_not_found')
  if (before.kind === 'host' && typeof change.capacity_gib === 'number') {
    throw new Problem('default_volume_protected', { message: 'the default volume cannot have a cap' })
  }
  const { capacity_gib } = change
  if (typeof capacity_gib === 'number') await requireEnforceableCap(deps, org_id, { capacity_gib, home: before })
  const changed = await deps.db.transaction(org_id, (tx) => write(deps, { tx, caller, id }, change))
  deps.notifications.publish(volumeTopics(changed))
  return changed.volume
}

async function write(
  deps: Pick<BaseDeps, 'clock' | 'uuids'>,
  { tx, caller, id }: { readonly tx: Queryable; readonly caller: Caller; readonly id: VolumeId },
  change: VolumeChange,
): Promise<volumes.VolumeHome & { readonly volume: Volume }> {
  const { org_id, actor } = caller
  const locked = await volumes.lock(tx, org_id, id)
  if (locked === null) throw new Problem('volume_not_found')
  requireMatch(change.ifMatch ?? null, etagOf(renderVolume(locked)))
  if (locked.status !== 'active') {
    const details = { field: 'status', seen: locked.status, accepted: ['active'] }
    throw new Problem('invalid_state_transition', { details })
  }
  const { home_worker_id, is_shared, ...old } = locked
  const from = { capacity_gib: old.capacity_gib, labels: old.labels }
  const to = {
    capacity_gib: change.capacity_gib === undefined ? old.capacity_gib : change.capacity_gib,
    labels: change.labels ?? old.labels,
  }
  const home = { home_worker_id, is_shared }
  if (to.capacity_gib === from.capacity_gib && areEqual(to.labels, from.labels)) return { ...home, volume: old }
  const volume = await volumes.update(tx, id, { ...to, updated_at: deps.clock.now() })
  const payload = { volume_id: id, ...(old.name === null ? {} : { name: old.name }), to, from }
  await recordEvent(deps, tx, { org_id, actor, event_type: 'volume_updated', payload })
  return { ...home, volume }
}

type Labels = Readonly<Record<string, string>>

function areEqual(a: Labels, b: Labels): boolean {
  const keys = Object.keys(a)
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && a[key] === b[key])
}
