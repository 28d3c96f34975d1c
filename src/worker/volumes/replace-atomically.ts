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
  /** As the client wrote it. */
  readonly path: string
  readonly random: Random
  /** Refuses a target before anything is made; asked again before it is replaced. */
  readonly check?: (target: ResolvedPath) => void
  /** Makes it, under a name that is not there, whole and settled but for what `finish` does. */
  readonly stage: (folder: FileHandle, name: string) => Promise<StagedFile>
}
/** What was made, still held; `finish` gives it to its owner, knowing what it replaces. */
export type StagedFile = AsyncDisposable & { finish(replaced: BigIntStats | null): Promise<void> }

/**
 * Makes a file or folder aside and puts it at its path by a rename, over a file that is there: whoever looks sees the old
 * one or the new one whole. Folders above are made only then, so that what fails leaves nothing behind.
 */
export async function replaceAtomically(volume: VolumeRoot, options: ReplaceOptions): Promise<void> {
  const { names, path } = options
  await using aim = await translateErrors(path, () =>
    resolveBeneath(volume, names, { path, lastSymlink: 'follow', ifMissing: 'tell' }),
  )
  checkTarget(aim, options)
  const temporary = newTemporaryName(options.random)
  try {
    await using made = await options.stage(aim.folder, temporary)
    await translateErrors(path, async () => {
      await using target = await resolveBeneath(volume, names, { path, lastSymlink: 'follow', ifMissing: 'above' })
      checkTarget(target, options)
      await made.finish(target.found?.stats ?? null)
      await rename(descriptorPath(aim.folder, temporary), descriptorPath(target.folder, target.name ?? '.'))
      await syncFolder(target.folder)
    })
  } catch (error) {
    await deleteTemporary(aim.folder, temporary)
    throw error
  }
}

function checkTarget(target: ResolvedPath, { path, check }: ReplaceOptions): void {
  const stats = target.found?.stats
  if (stats?.isDirectory() === true) throw conflictError(path, 'is a folder')
  if (stats?.isFile() === false) throw conflictError(path, 'is neither a file nor a folder')
  check?.(target)
}
