import type { FileHandle } from 'node:fs/promises'
import { VolumeFileError } from '../../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../../domain/volumes/volume-path.ts'
import { resolveBeneath, type VolumeRoot } from '../../volumes/resolve-beneath.ts'
import { translateErrors } from '../../volumes/file-errors.ts'
import { BlockedPathError } from './root-tree.ts'

/**
 * Calls back with what a bind mount names on its organization's host volume: a folder, made when it is not there, or a
 * file. It is held by a descriptor that was reached step by step beneath the volume's root, so that no symlink and no
 * change meanwhile leads out of it. Rejects with `BlockedPathError`, in words for the sandbox's owner.
 */
export async function withBindSource<T>(
  volume: VolumeRoot,
  host: string,
  use: (held: FileHandle) => Promise<T>,
): Promise<T> {
  const parsed = parseVolumePath(host)
  if ('refused' in parsed) throw new BlockedPathError(`'${host}': ${parsed.refused}`)
  await using place = await reach(volume, host, parsed.names)
  const stats = await place.found?.handle.stat()
  if (place.found === null || (stats?.isDirectory() !== true && stats?.isFile() !== true))
    throw new BlockedPathError(`'${host}' is neither a folder nor a file`)
  return await use(place.found.handle)
}

async function reach(volume: VolumeRoot, host: string, names: readonly string[]): ReturnType<typeof resolveBeneath> {
  try {
    return await translateErrors(host, () =>
      resolveBeneath(volume, names, { path: host, lastSymlink: 'follow', ifMissing: 'all' }),
    )
  } catch (error) {
    throw error instanceof VolumeFileError ? new BlockedPathError(error.message) : error
  }
}
