import { chownSync, existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import type { VolumeStorage } from '../../src/worker/volumes/volume-storage.ts'

/** Volumes as plain folders without caps, for a driver whose sandboxes' users start at `uidShift` on the host. */
export function makePlainVolumes(dir: string, uidShift: number): Pick<VolumeStorage, 'open' | 'folderLimits'> {
  return {
    folderLimits: null,
    open({ volume_id }) {
      const folder = join(dir, volume_id)
      if (!existsSync(folder)) {
        mkdirSync(folder, { recursive: true })
        chownSync(folder, uidShift, uidShift)
      }
      return Promise.resolve(folder)
    },
  }
}
