import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { Log } from '../../lib/log.ts'
import { makeVolumeFiles, type VolumeFilesOptions } from './volume-files.ts'
import { deleteStaleTemporaries } from './temporary-files.ts'

/** What nobody has written to for so long is under way no more, on no worker: an upload that pauses is ended after a minute. */
const STALE_AFTER_MS = 3_600_000

/**
 * The files of volumes by their folder. What killed workers left unfinished in a volume is deleted, beside the requests,
 * when this worker is first asked for its files.
 */
export function makeVolumeFilesOpener(
  options: Omit<VolumeFilesOptions, 'root'> & { readonly log: Log },
): (root: string) => VolumeFiles {
  const { log, ...rest } = options
  const swept = new Set<string>()
  return (root) => {
    if (!swept.has(root)) {
      swept.add(root)
      deleteStaleTemporaries(root, STALE_AFTER_MS).catch((error: unknown) => {
        log.warn({ error }, 'what was left unfinished in a volume could not be deleted')
      })
    }
    return makeVolumeFiles({ root, ...rest })
  }
}
