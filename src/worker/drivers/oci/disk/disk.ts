import { existsSync } from 'node:fs'
import { mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type SandboxId } from '../../../../domain/ids.ts'
import type { Random } from '../../../../lib/random.ts'
import type { CommandRunner } from '../../../../lib/run-command.ts'
import type { Image } from '../../../images/image.ts'
import { makeFormat } from './format-disk.ts'
import { pinImage, pinnedImage } from '../rootfs/pinned-image.ts'
import { readOrNull } from '../../shared/processes.ts'

/**
 * The sandboxes' disks: one sparse file with an ext4 file system each, whose size is the limit on what a sandbox can
 * write. A disk counts as kept only once it is marked ready: until then its content is half made and is made anew.
 */
export type Disks = {
  /** The sandbox's disk, checked and ready to mount; a new, empty one unless it has a kept one. */
  prepare(sandbox: SandboxId, sizeMib: number): Promise<Disk>
  /** Keeps a disk from now on, with the image that it was made over. */
  markReady(sandbox: SandboxId, image: Image): Promise<void>
  /** The image that a kept disk was made over; null for a sandbox without one. */
  pinnedImageOf(sandbox: SandboxId): Promise<Image | null>
  isReady(sandbox: SandboxId): boolean
  /** Deletes a disk; an unknown one succeeds. */
  delete(sandbox: SandboxId): Promise<void>
  list(): Promise<readonly SandboxId[]>
  /** The run that has the disk mounted or is about to; null for none. */
  holderOf(sandbox: SandboxId): Promise<RunId | null>
  /** Names the run that has the disk. `prepare` comes first. */
  hold(sandbox: SandboxId, run: RunId): Promise<void>
  /** Ends a run's hold; does nothing when another run has it by now. */
  letGo(sandbox: SandboxId, run: RunId): Promise<void>
  /** Formats and mounts disks ahead until the pool is full. */
  refill(): Promise<void>
  /** Unmounts and deletes the disks that were made ahead. */
  drain(): Promise<void>
}

export type Disk = {
  readonly path: string
  readonly isNew: boolean
  readonly sizeMib: number
  /** The name under which it was mounted ahead; null when it is not mounted yet. */
  readonly mountedAs: string | null
}

export type DisksInput = {
  readonly dir: string
  readonly defaultSizeMib: number
  /** How many disks of the default size are kept formatted ahead. */
  readonly poolSize: number
  readonly commands: CommandRunner
  readonly random: Random
  /** Mounts a disk that is made ahead under a name of its own, and the other way round. */
  readonly mountAhead: (name: string, path: string) => Promise<void>
  readonly unmountAhead: (name: string) => Promise<void>
}

const CHECK_TIMEOUT_MS = 600_000
const IMAGE = 'disk.img'
const READY = 'ready'
const HOLDER = 'holder'

/** What the mounts of disks made ahead are named by, where others are named by their run. */
export const READY_PREFIX = 'ready-'

/** Opens the folder of disks. Disks that were never marked ready stay until their sandbox's next start or `delete`. */
export async function openDisks(input: DisksInput): Promise<Disks> {
  const kept = join(input.dir, 'kept')
  const pool = join(input.dir, `pool-${String(input.defaultSizeMib)}`)
  await Promise.all([kept, pool].map((folder) => mkdir(folder, { recursive: true, mode: 0o700 })))
  const folderOf = (sandbox: SandboxId): string => join(kept, sandbox)
  const imageOf = (name: string): string => join(pool, `${name}.img`)
  const ready: string[] = []
  let isDraining = false
  // What an earlier worker made ahead may have been mounted when the machine went down; a new one costs 8 ms.
  for (const name of await readdir(pool)) await rm(join(pool, name))
  const format = await makeFormat(input.commands, join(input.dir, 'empty'))

  /** Gives a disk that was made ahead to a sandbox; it stays mounted where it is, under the name that is answered. */
  const takeReady = async (path: string): Promise<string | null> => {
    const name = ready.shift()
    if (name === undefined) return null
    await rename(imageOf(name), path)
    return name
  }
  const isReady = (sandbox: SandboxId): boolean => existsSync(join(folderOf(sandbox), READY))
  const holderOf = async (sandbox: SandboxId): Promise<RunId | null> => {
    const text = await readOrNull(join(folderOf(sandbox), HOLDER))
    return text === null || text === '' ? null : asId<RunId>(text)
  }
  return {
    holderOf,
    async hold(sandbox, run) {
      await writeFile(join(folderOf(sandbox), HOLDER), run)
    },
    async letGo(sandbox, run) {
      if ((await holderOf(sandbox)) === run) await rm(join(folderOf(sandbox), HOLDER), { force: true })
    },
    async prepare(sandbox, sizeMib) {
      const path = join(folderOf(sandbox), IMAGE)
      if (isReady(sandbox)) {
        if (!(await isClean(path))) await repair(input.commands, path)
        return { path, isNew: false, sizeMib, mountedAs: null }
      }
      await rm(folderOf(sandbox), { recursive: true, force: true })
      await mkdir(folderOf(sandbox), { mode: 0o700 })
      const mountedAs = sizeMib === input.defaultSizeMib ? await takeReady(path) : null
      if (mountedAs === null) await format(path, sizeMib)
      return { path, isNew: true, sizeMib, mountedAs }
    },
    async markReady(sandbox, image) {
      await pinImage(folderOf(sandbox), image)
      await writeFile(join(folderOf(sandbox), READY), '')
    },
    pinnedImageOf: async (sandbox) => (isReady(sandbox) ? await pinnedImage(folderOf(sandbox)) : null),
    isReady,
    async delete(sandbox) {
      await rm(folderOf(sandbox), { recursive: true, force: true })
    },
    async list() {
      return (await readdir(kept)).map((name) => asId<SandboxId>(name))
    },
    async refill() {
      while (!isDraining && ready.length < input.poolSize) {
        const name = `${READY_PREFIX}${input.random.bytes(8).toString('hex')}`
        await format(imageOf(name), input.defaultSizeMib)
        await input.mountAhead(name, imageOf(name))
        ready.push(name)
      }
    },
    async drain() {
      isDraining = true
      for (const name of ready.splice(0)) {
        await input.unmountAhead(name)
        await rm(imageOf(name), { force: true })
      }
    },
  }
}

/** Whether a file system was unmounted in order: bit 0 of `s_state` and no error bit (ext4 on-disk format, superblock). */
async function isClean(path: string): Promise<boolean> {
  const handle = await open(path, 'r')
  try {
    const state = Buffer.alloc(2)
    await handle.read(state, 0, 2, 1024 + 0x3a)
    return (state.readUInt16LE() & 3) === 1
  } finally {
    await handle.close()
  }
}

async function repair(commands: CommandRunner, path: string): Promise<void> {
  const result = await commands.attempt('e2fsck', ['-f', '-y', path], { timeoutMs: CHECK_TIMEOUT_MS })
  const isRepaired = result.code !== null && (result.code & ~3) === 0 // 1 and 2 say "errors corrected" (e2fsck(8))
  if (!isRepaired) throw new Error(`the sandbox's disk is damaged beyond repair: e2fsck exit ${String(result.code)}`)
}
