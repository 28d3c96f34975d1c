import type { Caller } from '../../domain/orgs/caller.ts'
import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import type { VolumeId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { renderVolume } from '../../domain/volumes/volume.ts'
import { accrueStorage } from '../../store/usage/accrue-storage.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import type { BaseDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { REAP_VOLUMES_TOPIC, volumeTopics } from '../topics.ts'

/** The maximum number of sandboxes that a `volume_in_use` refusal names. */
const NAMED_USERS_MAX = 20

/**
 * Marks a volume for deletion. Once the call resolves, no sandbox can mount the volume, and its worker deletes its
 * files. May be repeated. Throws `volume_not_found` for an unknown volume,
 * `default_volume_protected`, `precondition_failed`, and `volume_in_use` while an active sandbox mounts it.
 */
export async function deleteVolume(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'notifications'>,
  caller: Caller,
  id: VolumeId,
  ifMatch: IfMatch | null = null,
): Promise<void> {
  const { org_id, actor } = caller
  const home = await deps.db.transaction(org_id, async (tx) => {
    const volume = await volumes.lock(tx, org_id, id)
    if (volume === null) throw new Problem('volume_not_found')
    requireMatch(ifMatch, etagOf(renderVolume(volume)))
    if (volume.kind === 'host' || volume.name === null) throw new Problem('default_volume_protected')
    if (volume.status === 'deleting') return volume
    const users = await volumes.sandboxesMounting(tx, id, NAMED_USERS_MAX)
    if (users.length > 0) throw inUse(users)
    const now = deps.clock.now()
    await accrueStorage(tx, 'volumes', [id], now) // meters storage up to now: a deleted volume costs nothing
    await volumes.scheduleDeletion(tx, id, now)
    const payload = { volume_id: id, name: volume.name }
    await recordEvent(deps, tx, { org_id, actor, event_type: 'volume_deletion_scheduled', payload })
    return volume
  })
  deps.notifications.publish([...volumeTopics(home), REAP_VOLUMES_TOPIC])
}

function inUse(users: readonly volumes.MountingSandbox[]): Problem {
  const names = users.map(({ name }) => `'${name}'`).join(', ')
  return new Problem('volume_in_use', {
    message: `volume in use: stop or delete the sandboxes that mount it first: ${names}`,
    details: { sandboxes: users },
  })
}
