import { rename, unlink } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import type { VolumeFile, VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import { VolumeFileError } from '../../contract/volumes/volume-protocol.ts'
import { parseVolumePath, type VolumePath } from '../../domain/volumes/volume-path.ts'
import type { Random } from '../../lib/random.ts'
import { walk, type Found, type Identity, type Place, type Volume } from './beneath.ts'
import { makeCopy } from './copy-tree.ts'
import { openHeld, pathOf, settleFolder } from './descriptors.ts'
import { conflict, invalidPath, notFound, withMeaning } from './file-errors.ts'
import { describeFile, isShown } from './file-facts.ts'
import { listFolder, statsBehind } from './list-folder.ts'
import { putInPlace } from './put-in-place.ts'
import { contentOf } from './read-file.ts'
import { deleteTree, isTemporaryName } from './temporaries.ts'
import { makeFile } from './write-file.ts'

export type VolumeFilesOptions = Volume & { readonly random: Random }

/**
 * The files of the volume whose folder on this machine is `root`; user 0 of its sandboxes is `uidShift` here. It keeps
 * nothing in memory, so that many may serve one volume. Sandboxes may change the tree meanwhile: no operation reaches
 * outside `root` (`beneath.ts`). A stream given to `write` is left open when the write is refused.
 */
export function makeVolumeFiles({ random, ...volume }: VolumeFilesOptions): VolumeFiles {
  return {
    list: (path) =>
      withMeaning(path, async () => {
        const names = namesOf(path)
        await using place = await walk(volume, names, { path, last: 'follow', missing: 'refuse' })
        return await listFolder(volume, foundAt(place, path), { names, path })
      }),
    stat: (path) => statOf(volume, path),
    exists: (path) => existsAt(volume, path),
    read: (path) => withMeaning(path, () => read(volume, path)),
    write: (path, content) => write(volume, path, { random, content }),
    mkdir: (path) =>
      withMeaning(path, async () => {
        await using place = await walk(volume, namesOf(path), { path, last: 'follow', missing: 'all' })
        if (place.found?.stats.isDirectory() !== true) throw conflict(path, 'exists and is not a folder')
      }),
    copy: (from, to) => copy(volume, { from, to, random }),
    rename: (from, to) => move(volume, from, to),
    remove: (path, { isRecursive }) => withMeaning(path, () => remove(volume, path, { isRecursive })),
  }
}

function namesOf(path: string): VolumePath {
  const parsed = parseVolumePath(path)
  if ('refused' in parsed) throw new VolumeFileError('invalid_volume_path', parsed.refused)
  const kept = parsed.names.find(isTemporaryName)
  if (kept !== undefined) throw invalidPath(path, 'names that begin so are kept for files that are being written')
  return parsed.names
}

function foundAt({ found }: Place, path: string): Found {
  if (found === null) throw notFound(path)
  return found
}

async function statOf(volume: Volume, path: string): Promise<VolumeFile> {
  const names = namesOf(path)
  const stats = await withMeaning(path, async () => {
    await using place = await walk(volume, names, { path, last: 'keep', missing: 'refuse' })
    const found = foundAt(place, path)
    return found.stats.isSymbolicLink() ? await statsBehind(volume, names) : found.stats
  })
  if (stats === null || !isShown(stats)) throw notFound(path)
  return describeFile(`/${names.join('/')}`, stats, volume.uidShift)
}

async function existsAt(volume: Volume, path: string): Promise<boolean> {
  try {
    await statOf(volume, path)
    return true
  } catch (error) {
    if (error instanceof VolumeFileError && error.code === 'volume_file_not_found') return false
    throw error
  }
}

async function read(volume: Volume, path: string): Promise<{ sizeBytes: number; content: Readable }> {
  await using place = await walk(volume, namesOf(path), { path, last: 'follow', missing: 'refuse' })
  const { handle, stats } = foundAt(place, path)
  if (stats.isDirectory()) throw conflict(path, 'is a folder')
  if (!stats.isFile()) throw notFound(path)
  const file = await openHeld(handle)
  const sizeBytes = (await file.stat()).size
  return { sizeBytes, content: contentOf(file, sizeBytes) }
}

async function write(
  volume: Volume,
  path: string,
  { random, content }: { readonly random: Random; readonly content: Readable },
): Promise<{ sizeBytes: number }> {
  let sizeBytes = 0
  await putInPlace(volume, {
    names: namesOf(path),
    path,
    random,
    async make(folder, name) {
      const file = await makeFile(folder, name, { path, content, uidShift: volume.uidShift })
      sizeBytes = file.sizeBytes
      return file
    },
  })
  return { sizeBytes }
}

async function copy(
  volume: Volume,
  { from, to, random }: { readonly from: string; readonly to: string; readonly random: Random },
): Promise<void> {
  const names = namesOf(to)
  await using place = await withMeaning(from, () =>
    walk(volume, namesOf(from), { path: from, last: 'follow', missing: 'refuse' }),
  )
  const source = foundAt(place, from)
  if (!isShown(source.stats)) throw notFound(from)
  await putInPlace(volume, {
    names,
    path: to,
    random,
    make: (folder, name) => withMeaning(from, () => makeCopy(folder, name, { ...source, path: from })),
    check(target) {
      refuseWithin(source, target, { from, to })
      if (source.stats.isDirectory() && target.found !== null) throw conflict(to, 'exists and is not a folder')
    },
  })
}

async function move(volume: Volume, from: string, to: string): Promise<void> {
  const [fromNames, toNames] = [namesOf(from), namesOf(to)]
  await using place = await withMeaning(from, () =>
    walk(volume, fromNames, { path: from, last: 'keep', missing: 'refuse' }),
  )
  const { name } = place
  if (name === null) throw invalidPath(from, 'the root of a volume cannot be moved')
  await withMeaning(to, async () => {
    await using aim = await walk(volume, toNames, { path: to, last: 'keep', missing: 'tell' })
    if (toNames.length === 0) throw conflict(to, 'is the root of the volume')
    refuseWithin(foundAt(place, from), aim, { from, to })
    await using target = await walk(volume, toNames, { path: to, last: 'keep', missing: 'above' })
    await rename(pathOf(place.folder, name), pathOf(target.folder, target.name ?? '.'))
    await settleFolder(target.folder)
  })
}

/** Refuses to put a folder into itself. */
function refuseWithin(
  source: Found,
  target: Place,
  { from, to }: { readonly from: string; readonly to: string },
): void {
  const isSource = ({ dev, ino }: Identity): boolean => dev === source.stats.dev && ino === source.stats.ino
  if (target.trail.some(isSource)) throw conflict(to, `lies within '${from}'`)
}

async function remove(volume: Volume, path: string, { isRecursive }: { readonly isRecursive: boolean }): Promise<void> {
  await using place = await walk(volume, namesOf(path), { path, last: 'keep', missing: 'refuse' })
  const { folder, name } = place
  if (name === null) throw invalidPath(path, 'the root of a volume cannot be removed')
  if (!foundAt(place, path).stats.isDirectory()) return await unlink(pathOf(folder, name))
  if (!isRecursive) throw conflict(path, 'is a folder: ask for a recursive removal to delete it with all in it')
  if (!(await deleteTree(folder, name))) throw conflict(path, 'could not be removed whole: part of it is in use')
}
