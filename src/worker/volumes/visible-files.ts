import { isUtf8 } from 'node:buffer'
import { constants, type BigIntStats } from 'node:fs'
import { lstat } from 'node:fs/promises'
import { type VolumeFile, VolumeFileError } from '../../contract/volumes/volume-protocol.ts'
import type { VolumePath } from '../../domain/volumes/volume-path.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { type OpenEntry, type StepBudget, type VolumeRoot, resolveBeneath } from './resolve-beneath.ts'
import { descriptorPath, listNames } from './descriptors.ts'
import { conflictError, translateErrors } from './file-errors.ts'
import { isTemporaryName } from './temporary-files.ts'

/** The maximum number of entries in one reply, about 25 MB of JSON. The public client doesn't support pages here. */
export const ENTRIES_LIMIT = 100_000
/** How many files to examine at a time. Node runs four of these system calls in parallel. */
const STAT_BATCH = 16
/** The step budget for all symlinks in a folder. Symlinks beyond it are hidden. An ordinary symlink takes two steps. */
const LINK_STEPS_LIMIT = 400_000

/**
 * Lists an open folder as clients see it, sorted by path. Names that are not UTF-8 are hidden, because clients can't
 * ask for them.
 */
export async function listFolder(
  volume: VolumeRoot,
  folder: OpenEntry,
  at: { readonly names: VolumePath; readonly path: string },
): Promise<readonly VolumeFile[]> {
  if (!folder.stats.isDirectory()) throw conflictError(at.path, 'is not a folder')
  const budget: StepBudget = { steps: LINK_STEPS_LIMIT }
  const files: VolumeFile[] = []
  const look = async (name: string): Promise<void> => {
    const names = [...at.names, name]
    const stats = await statVisible(volume, names, { folder, name, budget })
    if (stats !== null) files.push(describeFile(`/${names.join('/')}`, stats, volume.uidShift))
  }
  for await (const batch of batchesOf(visibleNames(folder))) {
    await Promise.all(batch.map(look))
    if (files.length > ENTRIES_LIMIT) throw conflictError(at.path, `holds more than ${String(ENTRIES_LIMIT)} files`)
  }
  return files.sort((a, b) => (a.path < b.path ? -1 : 1))
}

/**
 * Returns the attributes of a symlink's target. Null when the target is outside the volume, missing or hidden, or when
 * the symlink is part of a loop.
 */
export async function statThroughSymlink(
  volume: VolumeRoot,
  names: VolumePath,
  budget?: StepBudget,
): Promise<BigIntStats | null> {
  const path = `/${names.join('/')}`
  const options = {
    path,
    lastSymlink: 'follow',
    ifMissing: 'refuse',
    ...(budget === undefined ? {} : { budget }),
  } as const
  try {
    return await translateErrors(path, async () => {
      await using resolved = await resolveBeneath(volume, names, options)
      return resolved.found !== null && isVisible(resolved.found.stats) ? resolved.found.stats : null
    })
  } catch (error) {
    if (error instanceof VolumeFileError) return null
    throw error
  }
}

async function statVisible(
  volume: VolumeRoot,
  names: VolumePath,
  { folder, name, budget }: { readonly folder: OpenEntry; readonly name: string; readonly budget: StepBudget },
): Promise<BigIntStats | null> {
  const stats = await statOrGone(folder, name)
  if (stats?.isSymbolicLink() === true) return await statThroughSymlink(volume, names, budget)
  return stats !== null && isVisible(stats) ? stats : null
}

async function statOrGone({ handle }: OpenEntry, name: string): Promise<BigIntStats | null> {
  try {
    return await lstat(descriptorPath(handle, name), { bigint: true })
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

async function* visibleNames({ handle }: OpenEntry): AsyncGenerator<string> {
  for await (const name of listNames(handle)) {
    if (!isUtf8(name)) continue
    const text = name.toString('utf8')
    if (!isTemporaryName(text)) yield text
  }
}

async function* batchesOf(names: AsyncIterable<string>): AsyncGenerator<readonly string[]> {
  let batch: string[] = []
  for await (const name of names) {
    batch.push(name)
    if (batch.length < STAT_BATCH) continue
    yield batch
    batch = []
  }
  yield batch
}

/** The id shown for all users outside the sandbox, the same as the kernel's overflow user. */
const OVERFLOW_ID = 65_534
/** The number of user ids in a sandbox. */
const IDS_PER_SANDBOX = 65_536
const WRITABLE_BITS = 0o222
/** The range of times that ISO 8601 can express with four-digit years. A sandbox can set any file time. */
const EARLIEST_MS = -62_135_596_800_000n // 0001-01-01
const LATEST_MS = 253_402_300_799_999n // 9999-12-31

/**
 * Whether clients can see a file of this kind. They see files and folders. Symlinks appear as their targets, and all
 * other kinds are hidden.
 */
export function isVisible(stats: BigIntStats): boolean {
  return stats.isFile() || stats.isDirectory()
}

/** What `describeFile` needs to know of a file. */
export type FileAttributes = Pick<BigIntStats, 'mode' | 'uid' | 'gid' | 'size' | 'atimeMs' | 'mtimeMs' | 'birthtimeMs'>

/** Describes a file or folder for clients. `path` starts at the root with a slash. */
export function describeFile(path: string, stats: FileAttributes, uidShift: number): VolumeFile {
  const mode = Number(stats.mode)
  return {
    path,
    kind: (mode & constants.S_IFMT) === constants.S_IFDIR ? 'directory' : 'file',
    size: Number(stats.size),
    mode,
    uid: idInSandbox(stats.uid, uidShift),
    gid: idInSandbox(stats.gid, uidShift),
    readonly: (mode & WRITABLE_BITS) === 0,
    accessed_at: timeOf(stats.atimeMs),
    modified_at: timeOf(stats.mtimeMs),
    created_at: timeOf(stats.birthtimeMs),
  }
}

function idInSandbox(hostId: bigint, uidShift: number): number {
  const id = Number(hostId) - uidShift
  return id >= 0 && id < IDS_PER_SANDBOX ? id : OVERFLOW_ID
}

function timeOf(ms: bigint): string {
  const shown = ms < EARLIEST_MS ? EARLIEST_MS : ms > LATEST_MS ? LATEST_MS : ms
  return new Date(Number(shown)).toISOString()
}
