import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import type { VolumeStorage } from './volume-storage.ts'

/** Returns access to the files of volumes in folders of this machine. `filesOf` gets the folder of a volume. */
export function makeOpenFolderFiles(
  storage: Pick<VolumeStorage, 'open' | 'folderLimits'>,
  filesOf: (root: string) => VolumeFiles,
): (volume: DesiredVolume) => Promise<VolumeFiles> {
  return async (volume) =>
    gateChanges(filesOf(await storage.open(volume)), (work) => storage.folderLimits?.using(volume, work) ?? work())
}

/** Returns file operations whose changes run within `using`. */
function gateChanges(files: VolumeFiles, using: <T>(work: () => Promise<T>) => Promise<T>): VolumeFiles {
  return {
    ...files,
    write: (path, content) => using(() => files.write(path, content)),
    mkdir: (path) => using(() => files.mkdir(path)),
    copy: (from, to) => using(() => files.copy(from, to)),
    rename: (from, to) => using(() => files.rename(from, to)),
    remove: (path, options) => using(() => files.remove(path, options)),
  }
}
