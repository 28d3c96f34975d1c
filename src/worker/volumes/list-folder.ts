import { isUtf8 } from 'node:buffer'
import type { BigIntStats } from 'node:fs'
import { lstat } from 'node:fs/promises'
import { VolumeFileError, type VolumeFile } from '../../contract/volumes/volume-protocol.ts'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { walk, type Budget, type Found, type Volume } from './beneath.ts'
import { namesIn, pathOf } from './descriptors.ts'
import { conflict, isRefusal, withMeaning } from './file-errors.ts'
import { describeFile, isShown } from './file-facts.ts'
import { isTemporaryName } from './temporaries.ts'

/** The most that one reply holds: about 25 MB of JSON. The public client's call has no pages. */
const ENTRIES_LIMIT = 100_000
/** How many are looked at at once; Node does four at a time. */
const AT_ONCE = 16
/** For all symlinks of a folder together; what comes after is hidden. Sane links take two steps each. */
const LINK_STEPS_LIMIT = 400_000

/** What clients are shown of a folder that is held, sorted by path. Names that are not UTF-8 can't be asked for: hidden. */
export async function listFolder(
  volume: Volume,
  folder: Found,
  at: { readonly names: VolumePath; readonly path: string },
): Promise<readonly VolumeFile[]> {
  if (!folder.stats.isDirectory()) throw conflict(at.path, 'is not a folder')
  const budget: Budget = { steps: LINK_STEPS_LIMIT }
  const files: VolumeFile[] = []
  const look = async (name: string): Promise<void> => {
    const names = [...at.names, name]
    const stats = await statsShown(volume, names, { folder, name, budget })
    if (stats !== null) files.push(describeFile(`/${names.join('/')}`, stats, volume.uidShift))
  }
  for await (const batch of batchesOf(namesShown(folder))) {
    await Promise.all(batch.map(look))
    if (files.length > ENTRIES_LIMIT) throw conflict(at.path, `holds more than ${String(ENTRIES_LIMIT)} files`)
  }
  return files.sort((a, b) => (a.path < b.path ? -1 : 1))
}

/** What a symlink within the volume leads to; null when it leads out, in circles, nowhere, or to what is not shown. */
export async function statsBehind(volume: Volume, names: VolumePath, budget?: Budget): Promise<BigIntStats | null> {
  const path = `/${names.join('/')}`
  const options = { path, last: 'follow', missing: 'refuse', ...(budget === undefined ? {} : { budget }) } as const
  try {
    return await withMeaning(path, async () => {
      await using place = await walk(volume, names, options)
      return place.found !== null && isShown(place.found.stats) ? place.found.stats : null
    })
  } catch (error) {
    if (error instanceof VolumeFileError) return null
    throw error
  }
}

async function statsShown(
  volume: Volume,
  names: VolumePath,
  { folder, name, budget }: { readonly folder: Found; readonly name: string; readonly budget: Budget },
): Promise<BigIntStats | null> {
  const stats = await statOrGone(folder, name)
  if (stats?.isSymbolicLink() === true) return await statsBehind(volume, names, budget)
  return stats !== null && isShown(stats) ? stats : null
}

async function statOrGone({ handle }: Found, name: string): Promise<BigIntStats | null> {
  try {
    return await lstat(pathOf(handle, name), { bigint: true })
  } catch (error) {
    if (isRefusal(error, 'ENOENT')) return null
    throw error
  }
}

async function* namesShown({ handle }: Found): AsyncGenerator<string> {
  for await (const name of namesIn(handle)) {
    if (!isUtf8(name)) continue
    const text = name.toString('utf8')
    if (!isTemporaryName(text)) yield text
  }
}

async function* batchesOf(names: AsyncIterable<string>): AsyncGenerator<readonly string[]> {
  let batch: string[] = []
  for await (const name of names) {
    batch.push(name)
    if (batch.length < AT_ONCE) continue
    yield batch
    batch = []
  }
  yield batch
}
