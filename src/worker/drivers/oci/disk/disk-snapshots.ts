import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { TakenSnapshot, SnapshotTask } from '../../../../contract/snapshots/snapshot-protocol.ts'
import { asId, type SandboxId, type SnapshotId } from '../../../../domain/ids.ts'
import { readJson, statOrNull, syncPath, takenBytes, writeJsonAtomically } from '../../../../lib/files.ts'
import type { KeyedMutex } from '../../../../lib/turns/keyed-mutex.ts'
import type { HostCommands } from '../../../processes/system-calls.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { localCommands } from '../../../../lib/run-command.ts'
import { unmountBelow } from '../../../mounts.ts'
import type { DiskReserve } from '../../../disk-reserve.ts'
import type { Image } from '../../../images/image.ts'
import { SnapshotFailure } from '../../../snapshot-failure.ts'
import { pinImage, readPinnedImage } from './pinned-image.ts'
import { isClean, repair } from './repair-disk.ts'
import { DISK, FACTS, PARTIAL, syncAll } from './snapshot-folder.ts'
import { sendSnapshot } from './transfer-snapshot.ts'
import type { SandboxDisks } from './sandbox-disks.ts'

/**
 * Snapshots of disks: copies that never change. Each has a folder with the disk and with the image that the disk was made
 * over. The folder gets its name once everything in it is durable, so a snapshot is either whole or not there.
 */
export type DiskSnapshots = {
  /**
   * Copies a sandbox's disk, even while it is mounted. Returns the existing snapshot if there is one. Rejects with
   * `SnapshotFailure`.
   */
  take(task: TakeTask): Promise<TakenSnapshot>
  /** Returns what a new disk is made from, or null if the snapshot isn't here. */
  find(snapshot: SnapshotId): Promise<DiskSource | null>
  list(): Promise<readonly SnapshotId[]>
  /** Yields an archive of an OCI image layout with the files of a snapshot and of its image. Throws if it isn't here. */
  files(snapshot: SnapshotId, signal: AbortSignal): AsyncIterable<Buffer>
  /** Deletes a snapshot. Disks that were made from it stay. Succeeds for an unknown snapshot. */
  discard(snapshot: SnapshotId): Promise<void>
}

type TakeTask = Extract<SnapshotTask, { readonly do: 'take' }>

export type DiskSource = { readonly path: string; readonly image: Image; readonly takenMib: number }

type DiskSnapshotsInput = {
  readonly dir: string
  readonly imagesDir: string
  readonly disks: Pick<SandboxDisks, 'pathOf' | 'holderOf' | 'pinnedImageOf' | 'takenBytes'>
  /** Held while a disk is mounted, unmounted or copied, by its sandbox. */
  readonly diskLocks: KeyedMutex
  /** Returns the folder on which a run's disk is mounted. */
  readonly mountedAt: (run: string) => string
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly commands: HostCommands
  /** The number that is added to every owner id on disks and in image layers. */
  readonly uidShift: number
  readonly clock: Clock
}

/** The time for copying the largest disk on a slow machine. */
const COPY_TIMEOUT_MS = 1_800_000

/** Opens the folder of snapshots. Deletes those that an earlier worker did not finish. */
export async function openDiskSnapshots(input: DiskSnapshotsInput): Promise<DiskSnapshots> {
  const { dir, imagesDir } = input
  await mkdir(dir, { recursive: true, mode: 0o700 })
  for (const name of await readdir(dir))
    if (name.endsWith(PARTIAL)) {
      await unmountBelow(join(dir, name), { clock: input.clock, commands: localCommands }) // of a snapshot that was being sent
      await rm(join(dir, name), { recursive: true, force: true })
    }
  const read = (snapshot: SnapshotId): Promise<TakenSnapshot | null> => readJson(join(dir, snapshot, FACTS))
  return {
    async take(task) {
      const { snapshot_id, sandbox_id } = task
      const partial = join(dir, `${snapshot_id}${PARTIAL}`)
      return await input.diskLocks.run(snapshot_id, async () => {
        const taken = await read(snapshot_id)
        if (taken !== null) return taken
        await rm(partial, { recursive: true, force: true })
        await mkdir(partial, { mode: 0o700 })
        try {
          const facts = await fill(input, task, partial)
          await writeJsonAtomically(join(partial, FACTS), facts)
          await syncAll(partial)
          await rename(partial, join(dir, snapshot_id))
          await syncPath(dir)
          return facts
        } catch (error) {
          await rm(partial, { recursive: true, force: true })
          throw SnapshotFailure.of(error, `the disk of the sandbox ${sandbox_id} could not be copied`)
        }
      })
    },
    async find(snapshot) {
      const image = await readPinnedImage(join(dir, snapshot), imagesDir)
      if (image === null) return null
      const path = join(dir, snapshot, DISK)
      return { path, image, takenMib: takenBytes((await statOrNull(path)) ?? { blocks: 0 }) / (1024 * 1024) }
    },
    async list() {
      return (await readdir(dir)).filter((name) => !name.endsWith(PARTIAL)).map((name) => asId<SnapshotId>(name))
    },
    files: (snapshot, signal) => sendSnapshot({ ...input, snapshot, signal }),
    async discard(snapshot) {
      await input.diskLocks.run(snapshot, async () => {
        // First the name of an incomplete snapshot, so that a crash leaves no half of one.
        const partial = join(dir, `${snapshot}${PARTIAL}`)
        await rm(partial, { recursive: true, force: true })
        if ((await statOrNull(join(dir, snapshot))) !== null) await rename(join(dir, snapshot), partial)
        await rm(partial, { recursive: true, force: true })
      })
    },
  }
}

/** Copies the disk and its image's description into the folder. The disk can be mounted and written to meanwhile. */
async function fill(input: DiskSnapshotsInput, task: TakeTask, folder: string): Promise<TakenSnapshot> {
  const { commands, diskLocks } = input
  await requireSpace(input, task.sandbox_id)
  const path = join(folder, DISK)
  const image = await diskLocks.run(task.sandbox_id, () => copyDisk(input, task.sandbox_id, path))
  pinImage(folder, image, input.imagesDir)
  if (!(await isClean(path))) await repair(commands, path)
  const stats = await statOrNull(path)
  return {
    disk_bytes: stats?.size ?? 0,
    taken_bytes: takenBytes(stats ?? { blocks: 0 }),
    image_reference: image.reference,
    image_digest: image.digest,
    sha256: task.records_integrity ? await hashOf(path) : null,
  }
}

/** Rejects if a copy of the disk would not fit. Blocks that the copy shares count too: they no longer go with the disk. */
async function requireSpace({ disks, reserve }: DiskSnapshotsInput, sandbox: SandboxId): Promise<void> {
  const [neededMib, freeMib] = [(await disks.takenBytes(sandbox)) / (1024 * 1024), await reserve.freeMib()]
  if (neededMib <= freeMib) return
  const has = `the worker has ${String(Math.floor(freeMib))} MiB beyond its reserve`
  throw new SnapshotFailure('disk_full', `a copy of the disk takes ${String(Math.ceil(neededMib))} MiB, and ${has}`)
}

async function copyDisk(input: DiskSnapshotsInput, sandbox: SandboxId, to: string): Promise<Image> {
  const { commands, disks } = input
  const image = await disks.pinnedImageOf(sandbox)
  if (image === null) throw new SnapshotFailure('no_disk', 'the sandbox has no disk yet: it was never started')
  const holder = disks.holderOf(sandbox)
  const from = disks.pathOf(sandbox)
  const call =
    holder === null ? (['copy', from, to] as const) : (['snapshot', from, input.mountedAt(holder), to] as const)
  await commands.callSystem(call, { timeoutMs: COPY_TIMEOUT_MS })
  return image
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path, { highWaterMark: 1024 * 1024 }), hash)
  return hash.digest('hex')
}
