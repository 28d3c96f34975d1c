import type { DesiredRun } from '../../../../../contract/workers/worker-protocol.ts'
import { VolumeFileError } from '../../../../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../../../../domain/volumes/volume-path.ts'
import type { FolderLimits } from '../../../../volumes/volume-storage.ts'
import type { LimitFolder } from '../../../shared/pin-mounts.ts'
import { BlockedPathError } from '../../../shared/root-tree.ts'

const MIB = 1024 * 1024

/** Returns how the folders that a run mounts get the limits of its spec. `limits` is null if this machine can't limit folders. */
export function makeFolderLimiter(limits: FolderLimits | null, { volumes }: Pick<DesiredRun, 'volumes'>): LimitFolder {
  const volume = volumes.find(({ kind }) => kind === 'host')
  return async ({ host, quota_mib }, root, pin) => {
    if (limits === null || volume === undefined) {
      if (quota_mib !== null) throw new BlockedPathError("'quota_mib' can't be enforced on this worker")
      return await pin(() => Promise.resolve())
    }
    const bytes = quota_mib === null ? null : quota_mib * MIB
    return await limits.exclusively(volume, async () => {
      const parsed = parseVolumePath(host)
      if (bytes !== null && 'names' in parsed)
        await asBlocked(limits.prepare(volume, root, { names: parsed.names, path: host }))
      return await pin((held) => asBlocked(limits.set(volume, held, { bytes, path: host })))
    })
  }
}

async function asBlocked(work: Promise<void>): Promise<void> {
  try {
    await work
  } catch (error) {
    throw error instanceof VolumeFileError ? new BlockedPathError(error.message) : error
  }
}
