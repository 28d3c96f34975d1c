import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, rename, rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { SnapshotId } from '../../../../domain/ids.ts'
import type { TakenSnapshot } from '../../../../contract/snapshots/snapshot-protocol.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { readJson, statOrNull, syncPath, takenBytes, writeJsonAtomically } from '../../../../lib/files.ts'
import { localCommands } from '../../../../lib/run-command.ts'
import type { Image } from '../../../images/image.ts'
import { writeImageLayout } from '../../../images/write-layout.ts'
import { mount, unmountBelow } from '../../../mounts.ts'
import { localHostCommands } from '../../../processes/system-calls.ts'
import { DISK, FACTS, PARTIAL, syncAll } from './snapshot-folder.ts'
import { makeDiskFormatter } from './format-disk.ts'
import { pinImage, readPinnedImage } from './pinned-image.ts'

/** The label of an exported image with the size of the disk that a sandbox from it gets. */
export const DISK_LABEL = 'sandyard.disk_mib'
/** The label of an exported image with the name of the snapshot's sandbox. */
export const SOURCE_LABEL = 'sandyard.source'
const BYTES_PER_MIB = 1_048_576

/** Where the driver stores snapshots, and where images are stored. */
type SnapshotFolders = { readonly dir: string; readonly imagesDir: string }

type ExportInput = SnapshotFolders & {
  readonly snapshot: SnapshotId
  /** The folder to make. */
  readonly target: string
  readonly source: string
  readonly uidShift: number
  readonly clock: Clock
  readonly signal: AbortSignal
}

/**
 * Writes the files of a snapshot, with those of its image, as an OCI image layout with one layer. The worker may run. Returns false
 * if the snapshot isn't on this machine.
 */
export async function exportSnapshot(input: ExportInput): Promise<boolean> {
  const { dir, imagesDir, snapshot, target, source, uidShift, clock, signal } = input
  const from = join(dir, snapshot)
  const image = await readPinnedImage(from, imagesDir)
  const facts = await readJson<TakenSnapshot>(join(from, FACTS))
  if (image === null || facts === null) return false
  const folder = await mkdtemp(`${target}.`)
  const disk = join(folder, 'disk')
  try {
    await mkdir(disk)
    await mount(localCommands, ['-t', 'ext4', '-o', 'ro,loop,noload,nodev,nosuid,noexec', join(from, DISK), disk])
    const labels = { [DISK_LABEL]: String(Math.ceil(facts.disk_bytes / BYTES_PER_MIB)), [SOURCE_LABEL]: source }
    const layers = [...image.layers, join(disk, 'upper')]
    const layout = await writeImageLayout({ ...image, layers }, { folder, uidShift, labels, clock, signal })
    await rename(layout, target)
    return true
  } finally {
    await unmountBelow(folder, { clock, commands: localCommands })
    await rm(folder, { recursive: true, force: true })
  }
}

/**
 * Yields an archive of what `exportSnapshot` writes. Throws if the snapshot isn't on this machine. A worker that starts deletes
 * what an earlier one left of this.
 */
export async function* sendSnapshot(input: Omit<ExportInput, 'target' | 'source'>): AsyncGenerator<Buffer> {
  const { dir, snapshot, signal } = input
  const parent = join(dir, `sent${PARTIAL}`)
  await mkdir(parent, { recursive: true, mode: 0o700 })
  const folder = await mkdtemp(join(parent, 'to-'))
  const layout = join(folder, 'layout')
  try {
    if (!(await exportSnapshot({ ...input, target: layout, source: '' })))
      throw new Error(`the snapshot ${snapshot} is not on this worker`)
    const tar = spawn('tar', ['--create', '-C', layout, '.'], { stdio: ['ignore', 'pipe', 'ignore'], signal })
    const ended = once(tar, 'exit')
    ended.catch(() => undefined) // awaited below, unless the reader leaves before
    try {
      const pieces: AsyncIterable<Buffer> = tar.stdout
      yield* pieces
      const [code] = await ended
      if (code !== 0) throw new Error(`tar ended with ${String(code)}`)
    } finally {
      tar.kill('SIGKILL')
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
    await rmdir(parent).catch(() => undefined) // another one is being sent
  }
}

type ImportInput = SnapshotFolders & {
  readonly snapshot: SnapshotId
  /** The image with the files. Its layers must stay until this resolves. */
  readonly image: Image
  readonly diskMib: number
}

/** Makes a snapshot with an empty disk over an image, as a folder that isn't in use yet. `commit` puts it into use. */
export async function importSnapshot({
  dir,
  imagesDir,
  snapshot,
  image,
  diskMib,
}: ImportInput): Promise<{ readonly facts: TakenSnapshot; commit(): Promise<void>; discard(): Promise<void> }> {
  const partial = join(dir, `${snapshot}${PARTIAL}`)
  await mkdir(partial, { recursive: true, mode: 0o700 })
  const discard = (): Promise<void> => rm(partial, { recursive: true, force: true })
  try {
    const path = join(partial, DISK)
    const format = await makeDiskFormatter(localHostCommands, join(partial, 'empty'))
    await format(path, diskMib)
    await rm(join(partial, 'empty'), { recursive: true })
    pinImage(partial, image, imagesDir)
    const facts: TakenSnapshot = {
      disk_bytes: diskMib * BYTES_PER_MIB,
      taken_bytes: takenBytes((await statOrNull(path)) ?? { blocks: 0 }),
      image_reference: image.reference,
      image_digest: image.digest,
      sha256: null,
    }
    await writeJsonAtomically(join(partial, FACTS), facts)
    await syncAll(partial)
    return {
      facts,
      async commit() {
        await rename(partial, join(dir, snapshot))
        await syncPath(dir)
      },
      discard,
    }
  } catch (error) {
    await discard()
    throw error
  }
}
