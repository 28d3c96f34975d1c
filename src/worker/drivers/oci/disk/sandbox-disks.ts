import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type SandboxId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Random } from '../../../../lib/random.ts'
import type { HostCommands } from '../../../processes/system-calls.ts'
import type { DiskReserve } from '../../../disk-reserve.ts'
import type { Image } from '../../../images/image.ts'
import { openDiskPromises } from './disk-promises.ts'
import { makeDiskFormatter } from './format-disk.ts'
import { pinImage, readPinnedImage } from './pinned-image.ts'
import { isClean, repair } from './repair-disk.ts'
import { readFileSyncOrNull, statOrNull, takenBytes } from '../../../../lib/files.ts'

/**
 * The sandboxes' disks. Each is a sparse file with an ext4 file system, whose size limits what the sandbox can write.
 * Once a disk is marked ready, it is kept until `delete`. Before that the disk may be incomplete, and `prepare`
 * replaces it.
 */
export type SandboxDisks = {
  /**
   * Returns the sandbox's stored disk, checked and ready to mount, or a new disk: a copy of the disk `from`, or an empty one if
   * that is null. `spare` is the name of an empty disk of this size, which becomes the sandbox's.
   */
  prepare(sandbox: SandboxId, sizeMib: number, from: string | null, spare?: string): Promise<SandboxDisk>
  /** Formats an empty disk that is nobody's yet, and returns its path. The next worker deletes it if no sandbox got it. */
  makeSpare(name: string, sizeMib: number): Promise<string>
  /** Deletes a spare disk, which must not be mounted. Succeeds for an unknown one. */
  deleteSpare(name: string): Promise<void>
  /** The path of a sandbox's disk, which may not exist. */
  pathOf(sandbox: SandboxId): string
  /** Marks a disk as ready and stores its image with it. From then on the disk is kept. */
  markReady(sandbox: SandboxId, image: Image): void
  /** Returns the image of a sandbox's stored disk, or null if the sandbox has no stored disk. */
  pinnedImageOf(sandbox: SandboxId): Promise<Image | null>
  isReady(sandbox: SandboxId): boolean
  /** Returns what a sandbox's disk takes of the file system. 0 for an unknown sandbox. */
  takenBytes(sandbox: SandboxId): Promise<number>
  /** Returns how many MiB all disks together may have, by the space of the file system. */
  measureLimitMib(): Promise<number>
  /** Deletes a sandbox's disk. Succeeds for an unknown sandbox. */
  delete(sandbox: SandboxId): Promise<void>
  list(): readonly SandboxId[]
  /** Returns the run that has mounted the disk or is about to mount it. Null if no run holds the disk. */
  holderOf(sandbox: SandboxId): RunId | null
  /** Records which run holds the disk. Call `prepare` first. */
  setHolder(sandbox: SandboxId, run: RunId): void
  /** Clears the record that a run holds the disk. Does nothing when another run holds it. */
  releaseHolder(sandbox: SandboxId, run: RunId): Promise<void>
  /** Formats and mounts spare disks until the pool is full. */
  fillPool(): Promise<void>
  /** The number of disks in the pool. */
  readonly pooledCount: number
  /** Unmounts and deletes the disks in the pool. */
  drainPool(): Promise<void>
}

/** A sandbox's disk that is ready to mount. */
export type SandboxDisk = {
  readonly path: string
  readonly isNew: boolean
  readonly sizeMib: number
  /** The name of the disk's mount in the pool. Null if the disk is not mounted. */
  readonly mountedAs: string | null
}

type SandboxDisksInput = {
  readonly dir: string
  /** The folder of the image store. */
  readonly imagesDir: string
  readonly defaultSizeMib: number
  /** How many disks of the default size to keep formatted and mounted. */
  readonly poolSize: number
  /** The pool isn't filled from the reserve. */
  readonly reserve: Pick<DiskReserve, 'isShort' | 'freeMib'>
  /** How many times the space for disks all disks together may promise. */
  readonly overcommit: number
  readonly commands: HostCommands
  readonly random: Random
  readonly clock: Clock
  /** Mounts a disk of the pool under this name. `unmountPooled` unmounts it. */
  readonly mountPooled: (name: string, path: string) => Promise<void>
  readonly unmountPooled: (name: string) => Promise<void>
}

/** The time for copying the largest disk on a slow machine. */
const COPY_TIMEOUT_MS = 1_800_000
const IMAGE = 'disk.img'
const READY = 'ready'
const HOLDER = 'holder'

/** The prefix of the mount names of pooled disks. Other mounts have the name of their run. */
export const POOLED_DISK_PREFIX = 'ready-'

/**
 * Opens the folder of disks. A disk that was never marked ready stays in the folder until its sandbox's next start or
 * until `delete`.
 */
export async function openSandboxDisks(input: SandboxDisksInput): Promise<SandboxDisks> {
  const keptFolder = join(input.dir, 'kept')
  const poolFolder = join(input.dir, `pool-${String(input.defaultSizeMib)}`)
  await Promise.all([keptFolder, poolFolder].map((folder) => mkdir(folder, { recursive: true, mode: 0o700 })))
  const { reserve, overcommit, clock } = input
  const promises = await openDiskPromises({ dir: keptFolder, fileName: IMAGE, reserve, overcommit, clock })
  const folderOf = (sandbox: SandboxId): string => join(keptFolder, sandbox)
  /** The sandboxes with a folder. This process is the only writer, and each report lists them. */
  const kept = new Set((await readdir(keptFolder)).map((name) => asId<SandboxId>(name)))
  const imageOf = (name: string): string => join(poolFolder, `${name}.img`)
  const pooled: string[] = []
  let isDraining = false
  // Delete the pooled disks of an earlier worker, because they may have been mounted when the machine crashed. A new
  // disk takes only 8 ms.
  for (const name of await readdir(poolFolder)) await rm(join(poolFolder, name))
  const format = await makeDiskFormatter(input.commands, join(input.dir, 'empty'))

  /** Moves a pooled disk's file to `path` and returns the name of its mount, which stays. Returns null if the pool is empty. */
  const takePooled = (path: string): string | null => {
    const name = pooled.shift()
    if (name === undefined) return null
    renameSync(imageOf(name), path)
    return name
  }
  const isReady = (sandbox: SandboxId): boolean => existsSync(join(folderOf(sandbox), READY))
  const holderOf = (sandbox: SandboxId): RunId | null => {
    const text = readFileSyncOrNull(join(folderOf(sandbox), HOLDER))
    return text === null || text === '' ? null : asId<RunId>(text)
  }
  return {
    measureLimitMib: () => promises.measureLimitMib(),
    holderOf,
    setHolder(sandbox, run) {
      writeFileSync(join(folderOf(sandbox), HOLDER), run)
    },
    async releaseHolder(sandbox, run) {
      if (holderOf(sandbox) === run) await rm(join(folderOf(sandbox), HOLDER), { force: true })
    },
    pathOf: (sandbox) => join(folderOf(sandbox), IMAGE),
    async makeSpare(name, sizeMib) {
      await format(imageOf(name), sizeMib)
      return imageOf(name)
    },
    deleteSpare: (name) => rm(imageOf(name), { force: true }),
    async prepare(sandbox, sizeMib, from, spare) {
      const path = join(folderOf(sandbox), IMAGE)
      if (isReady(sandbox)) {
        if (!(await isClean(path))) await repair(input.commands, path)
        return { path, isNew: false, sizeMib, mountedAs: null }
      }
      await promises.add(sandbox, sizeMib)
      if (kept.has(sandbox)) await rm(folderOf(sandbox), { recursive: true, force: true })
      mkdirSync(folderOf(sandbox), { mode: 0o700 })
      kept.add(sandbox)
      if (from !== null) {
        await input.commands.callSystem(['copy', from, path], { timeoutMs: COPY_TIMEOUT_MS })
        return { path, isNew: true, sizeMib, mountedAs: null }
      }
      if (spare !== undefined) {
        renameSync(imageOf(spare), path)
        return { path, isNew: true, sizeMib, mountedAs: spare }
      }
      const mountedAs = sizeMib === input.defaultSizeMib ? takePooled(path) : null
      if (mountedAs === null) await format(path, sizeMib)
      return { path, isNew: true, sizeMib, mountedAs }
    },
    markReady(sandbox, image) {
      pinImage(folderOf(sandbox), image, input.imagesDir)
      writeFileSync(join(folderOf(sandbox), READY), '')
    },
    pinnedImageOf: async (sandbox) =>
      isReady(sandbox) ? await readPinnedImage(folderOf(sandbox), input.imagesDir) : null,
    isReady,
    takenBytes: async (sandbox) => takenBytes((await statOrNull(join(folderOf(sandbox), IMAGE))) ?? { blocks: 0 }),
    async delete(sandbox) {
      await rm(folderOf(sandbox), { recursive: true, force: true })
      kept.delete(sandbox)
      promises.remove(sandbox)
    },
    list: () => [...kept],
    async fillPool() {
      while (!isDraining && pooled.length < input.poolSize && !(await input.reserve.isShort())) {
        const name = `${POOLED_DISK_PREFIX}${input.random.bytes(8).toString('hex')}`
        await format(imageOf(name), input.defaultSizeMib)
        await input.mountPooled(name, imageOf(name))
        pooled.push(name)
      }
    },
    get pooledCount() {
      return pooled.length
    },
    async drainPool() {
      isDraining = true
      for (const name of pooled.splice(0)) {
        await input.unmountPooled(name)
        await rm(imageOf(name), { force: true })
      }
    },
  }
}
