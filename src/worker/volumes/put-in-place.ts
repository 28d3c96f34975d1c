import type { BigIntStats } from 'node:fs'
import { rename, type FileHandle } from 'node:fs/promises'
import type { Random } from '../../lib/random.ts'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { walk, type Place, type Volume } from './beneath.ts'
import { pathOf, settleFolder } from './descriptors.ts'
import { conflict, withMeaning } from './file-errors.ts'
import { discard, newTemporaryName } from './temporaries.ts'

export type PutInPlace = {
  readonly names: VolumePath
  /** As the client wrote it. */
  readonly path: string
  readonly random: Random
  /** Refuses a target before anything is made; asked again before it is replaced. */
  readonly check?: (target: Place) => void
  /** Makes it, under a name that is not there, whole and settled but for what `finish` does. */
  readonly make: (folder: FileHandle, name: string) => Promise<Made>
}
/** What was made, still held; `finish` gives it to its owner, knowing what it replaces. */
export type Made = AsyncDisposable & { finish(replaced: BigIntStats | null): Promise<void> }

/**
 * Makes a file or folder aside and puts it at its path by a rename, over a file that is there: whoever looks sees the old
 * one or the new one whole. Folders above are made only then, so that what fails leaves nothing behind.
 */
export async function putInPlace(volume: Volume, options: PutInPlace): Promise<void> {
  const { names, path } = options
  await using aim = await withMeaning(path, () => walk(volume, names, { path, last: 'follow', missing: 'tell' }))
  checkTarget(aim, options)
  const temporary = newTemporaryName(options.random)
  try {
    await using made = await options.make(aim.folder, temporary)
    await withMeaning(path, async () => {
      await using target = await walk(volume, names, { path, last: 'follow', missing: 'above' })
      checkTarget(target, options)
      await made.finish(target.found?.stats ?? null)
      await rename(pathOf(aim.folder, temporary), pathOf(target.folder, target.name ?? '.'))
      await settleFolder(target.folder)
    })
  } catch (error) {
    await discard(aim.folder, temporary)
    throw error
  }
}

function checkTarget(target: Place, { path, check }: PutInPlace): void {
  const stats = target.found?.stats
  if (stats?.isDirectory() === true) throw conflict(path, 'is a folder')
  if (stats?.isFile() === false) throw conflict(path, 'is neither a file nor a folder')
  check?.(target)
}
