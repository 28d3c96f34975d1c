import type { BigIntStats } from 'node:fs'
import { rename, type FileHandle } from 'node:fs/promises'
import type { Random } from '../../lib/random.ts'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { resolveBeneath, type ResolvedPath, type VolumeRoot } from './resolve-beneath.ts'
import { descriptorPath, syncFolder } from './descriptors.ts'
import { conflictError, translateErrors } from './file-errors.ts'
import { deleteTemporary, newTemporaryName } from './temporary-files.ts'

type ReplaceOptions = {
  readonly names: VolumePath
  /** The target path as the client wrote it. */
  readonly path: string
  readonly random: Random
  /**
   * Called with the target before any file is created, and again before the target is replaced. It throws to refuse the
   * target.
   */
  readonly check?: (target: ResolvedPath) => void
  /**
   * Creates the replacement under the given new name, complete and synced except for its ownership, which `finish`
   * sets.
   */
  readonly stage: (folder: FileHandle, name: string) => Promise<StagedFile>
}
/** A replacement that is still open. `finish` sets its owner and mode, which may depend on the replaced file. */
export type StagedFile = AsyncDisposable & { finish(replaced: BigIntStats | null): Promise<void> }

/**
 * Creates a file or folder under a temporary name and then renames it to its path. Replaces an existing file. Readers
 * see either the old file or the complete new one. Missing parent folders are created only just before the rename, so
 * that an earlier failure leaves no new folders.
 */
export async function replaceAtomically(volume: VolumeRoot, options: ReplaceOptions): Promise<void> {
  const { names, path } = options
  await using checked = await translateErrors(path, () =>
    resolveBeneath(volume, names, { path, lastSymlink: 'follow', ifMissing: 'report' }),
  )
  checkTarget(checked, options)
  const temporary = newTemporaryName(options.random)
  try {
    await using made = await options.stage(checked.folder, temporary)
    await translateErrors(path, async () => {
      await using target = await resolveBeneath(volume, names, { path, lastSymlink: 'follow', ifMissing: 'parents' })
      checkTarget(target, options)
      await made.finish(target.found?.stats ?? null)
      await rename(descriptorPath(checked.folder, temporary), descriptorPath(target.folder, target.name ?? '.'))
      await syncFolder(target.folder)
    })
  } catch (error) {
    await deleteTemporary(checked.folder, temporary)
    throw error
  }
}

function checkTarget(target: ResolvedPath, { path, check }: ReplaceOptions): void {
  const stats = target.found?.stats
  if (stats?.isDirectory() === true) throw conflictError(path, 'is a folder')
  if (stats?.isFile() === false) throw conflictError(path, 'is neither a file nor a folder')
  check?.(target)
}
