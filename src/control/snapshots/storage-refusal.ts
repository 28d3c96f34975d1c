import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { BYTES_PER_GIB } from '../../domain/volumes/volume.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import * as volumes from '../../store/volumes/volumes.ts'

/**
 * The problem `quota_exceeded` if volumes and snapshots have the organization's whole storage, or null. The size of a snapshot is known
 * only once it is made. So the last one may exceed the limit, and one is made at a time where there is a limit (`snapshot-work.ts`).
 */
export async function storageRefusal(q: Queryable, org: OrgId): Promise<Problem | null> {
  const max = await volumes.storageLimitGib(q, org)
  if (max === null) return null
  const bytes = await snapshots.storedBytes(q, org)
  if (bytes < max * BYTES_PER_GIB) return null
  const current = bytes / BYTES_PER_GIB
  return new Problem('quota_exceeded', {
    message: `quota exceeded: volumes and snapshots have all of the ${String(max)} GiB of the organization`,
    details: { limit: 'max_total_storage_gib', max, current, requested: 0, how_to_change: 'delete some' },
  })
}
