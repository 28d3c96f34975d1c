/**
 * The file system for volumes on a machine whose own file system can't enforce caps. It is a btrfs in a sparse file,
 * mounted through a loop device. A crash may interrupt any step. Each step therefore checks the state of the machine
 * first and completes only the missing parts.
 */
import { existsSync } from 'node:fs'
import { mkdir, open, readFile, readdir, rename, rm, rmdir, stat, statfs, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { localCommands, runCommand, tryCommand } from '../../lib/run-command.ts'
import { makeMountDir, mountFolderOf, mount, unmountBelow } from '../mounts.ts'
import { deviceName, type MountInfo, isMountedElsewhere, readMounts } from '../processes/mountinfo.ts'

type VolumePoolOptions = {
  /** The folder of the pool's file. No other program writes to it. */
  readonly dir: string
  /** The name of the pool's mount folder on this machine. No other pool has the same key. */
  readonly key: string
  /** The configured size. If null, it is half of the free space at the first start, and stays unchanged. */
  readonly sizeGib: number | null
  readonly clock: Clock
  readonly log: Log
}

type VolumePool = {
  /** The mount point of the pool. The sandboxes' users can pass through all its parent folders. */
  readonly root: string
  readonly sizeBytes: number
  /** The folder in which the kernel shows the pool's quota groups. Null: this kernel shows none. */
  readonly quotaFolder: string | null
  /** Unmounts the pool, unless part of it is still mounted elsewhere. */
  close(): Promise<void>
}

const GIB = 1024 ** 3
const MIN_SIZE_BYTES = GIB
const TIMEOUT_MS = 60_000
/** The time limit for a rescan, which reads the metadata of every file. */
const RESCAN_TIMEOUT_MS = 30 * 60_000
/** The folder in which the kernel lists each mounted btrfs. */
const BTRFS_SYSFS_FOLDER = '/sys/fs/btrfs'

/**
 * The mount options. `nodatacow` overwrites blocks in place, so files in a full volume can be rewritten, and a volume
 * uses only the space of its files. With copy-on-write, writing 90 MiB over a file of 90 MiB in a volume of 100 MiB
 * failed after 10 MiB (measured 2026-11).
 */
const MOUNT_OPTIONS = 'loop,noatime,discard=async,nodatacow'

/** Returns the path of the pool's file in `dir`. */
export function volumePoolFile(dir: string): string {
  return join(dir, 'pool.btrfs')
}

/** Returns the mount point of the pool with this key. */
export function volumePoolMountPoint(key: string): string {
  return join(mountFolderOf(key), 'pool')
}

/**
 * Opens the pool of a folder. Creates, grows and mounts the pool as necessary, or adopts the mount of an earlier
 * worker. Rejects when the machine doesn't support a pool, and then leaves no new file.
 */
export async function openVolumePool({ dir, key, sizeGib, clock, log }: VolumePoolOptions): Promise<VolumePool> {
  const file = volumePoolFile(dir)
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const root = volumePoolMountPoint(key)
  const unmount = async (): Promise<void> => {
    await unmountBelow(mountFolderOf(key), { clock, commands: localCommands })
    for (const folder of [root, mountFolderOf(key)]) if (existsSync(folder)) await rmdir(folder)
  }
  const isNew = !existsSync(file)
  let sizeBytes = 0
  try {
    if (isNew) await format(file, sizeGib === null ? await halfOfFree(dir) : sizeGib * GIB)
    await ensureMounted({ dir, key }, clock)
    sizeBytes = await ensureSize(root, file, sizeGib, log)
    await runCommand('btrfs', ['quota', 'enable', root], { timeoutMs: TIMEOUT_MS }) // succeeds if they are enabled already
    await ensureQuotasConsistent(root)
    await enableDirectIo(root)
  } catch (error) {
    if (isNew) {
      await unmount()
      for (const name of [file, freshNameOf(file)]) await rm(name, { force: true })
    }
    throw error
  }
  return {
    root,
    sizeBytes,
    quotaFolder: await findQuotaFolder(root),
    async close() {
      if (!(await isMountedElsewhere(root))) await unmount()
    },
  }
}

async function halfOfFree(dir: string): Promise<number> {
  const { bavail, bsize } = await statfs(dir)
  return Math.max(Math.floor((bavail * bsize) / 2 / GIB) * GIB, MIN_SIZE_BYTES)
}

function freshNameOf(file: string): string {
  return `${file}.new`
}

/** Creates the pool's file. It gets its final name only after it contains a file system. */
async function format(file: string, sizeBytes: number): Promise<void> {
  const fresh = freshNameOf(file)
  const handle = await open(fresh, 'w', 0o600)
  try {
    await handle.truncate(sizeBytes)
  } finally {
    await handle.close()
  }
  // A single copy of the metadata suffices, because the file system below protects itself against bad disks.
  await runCommand('mkfs.btrfs', ['--quiet', '--force', '--metadata', 'single', fresh], { timeoutMs: TIMEOUT_MS })
  await rename(fresh, file)
}

/** Mounts the pool, or adopts the mount of an earlier worker unless the pool's file was replaced. */
async function ensureMounted({ dir, key }: Pick<VolumePoolOptions, 'dir' | 'key'>, clock: Clock): Promise<void> {
  const root = volumePoolMountPoint(key)
  const found = await mountAt(root)
  if (found !== undefined) {
    if (await isBackedBy(found, volumePoolFile(dir))) return
    await unmountBelow(root, { clock, commands: localCommands })
  }
  const earlier = await findEarlierMount(dir)
  await makeMountDir(key)
  await mkdir(root, { recursive: true, mode: 0o700 })
  if (earlier === null) await mount(localCommands, ['-t', 'btrfs', '-o', MOUNT_OPTIONS, volumePoolFile(dir), root])
  else await moveMount(earlier, root, clock)
}

/** Finds the mount of the pool by an earlier release, whose keys were hashes of a path: sandboxes may still use it. */
async function findEarlierMount(dir: string): Promise<string | null> {
  for (const found of await readMounts('self'))
    if (EARLIER_MOUNT.test(found.point) && (await isBackedBy(found, volumePoolFile(dir)))) return found.point
  return null
}

const EARLIER_MOUNT = /^\/run\/sandyard\/[0-9a-f]{12}\/pool$/

/** Mounts the file system of one mount point on another. mount(8) can't move a mount whose parent is a shared mount. */
async function moveMount(from: string, to: string, clock: Clock): Promise<void> {
  await mount(localCommands, ['--bind', from, to])
  await unmountBelow(dirname(from), { clock, commands: localCommands })
  for (const folder of [from, dirname(from)]) await rmdir(folder)
}

async function mountAt(point: string): Promise<MountInfo | undefined> {
  return (await readMounts('self')).findLast((mount) => mount.point === point)
}

/** Whether the loop device of a mount is backed by this file, by whatever path it was opened. */
async function isBackedBy(found: MountInfo, file: string): Promise<boolean> {
  const columns = ['--noheadings', '--output', 'BACK-INO,BACK-MAJ:MIN']
  const { stdout } = await tryCommand('losetup', [...columns, found.source], { timeoutMs: TIMEOUT_MS })
  const [inode, device] = stdout.trim().split(/\s+/)
  const { ino, dev } = await stat(file)
  return inode === String(ino) && device === deviceName(dev)
}

/** Grows the file and the file system to the configured size. Never shrinks them. Returns the size in bytes. */
async function ensureSize(root: string, file: string, sizeGib: number | null, log: Log): Promise<number> {
  const before = (await stat(file)).size
  const wanted = sizeGib === null ? before : sizeGib * GIB
  if (wanted < before)
    log.warn({ sizeGib, keptGib: before / GIB }, 'the volume pool is larger than configured and keeps its size')
  if (wanted > before) {
    const handle = await open(file, 'r+')
    try {
      await handle.truncate(wanted)
    } finally {
      await handle.close()
    }
  }
  const device = (await mountAt(root))?.source ?? ''
  await runCommand('losetup', ['--set-capacity', device], { timeoutMs: TIMEOUT_MS })
  await runCommand('btrfs', ['filesystem', 'resize', 'max', root], { timeoutMs: TIMEOUT_MS })
  return Math.max(wanted, before)
}

/**
 * Makes sure that the kernel counts usage. Since version 6.1, the kernel may stop counting when a large subvolume is
 * deleted, and would then no longer enforce caps. It stops if the subvolume's tree has more levels than a threshold.
 * Trees have levels up to 7, so the threshold 8 disables the behavior. If counting has stopped, runs a rescan.
 */
export async function ensureQuotasConsistent(root: string): Promise<void> {
  const groups = await findQuotaFolder(root)
  if (groups === null) return
  const threshold = join(groups, 'drop_subtree_threshold')
  if (existsSync(threshold)) await writeFile(threshold, '8')
  if ((await readIfThere(join(groups, 'inconsistent')))?.trim() !== '1') return
  await runCommand('btrfs', ['quota', 'rescan', '-w', root], { timeoutMs: RESCAN_TIMEOUT_MS })
}

async function findQuotaFolder(root: string): Promise<string | null> {
  const device = basename((await mountAt(root))?.source ?? '')
  const names = existsSync(BTRFS_SYSFS_FOLDER) ? await readdir(BTRFS_SYSFS_FOLDER) : []
  const own = names.find((name) => existsSync(join(BTRFS_SYSFS_FOLDER, name, 'devices', device)))
  if (own === undefined) return null
  const groups = join(BTRFS_SYSFS_FOLDER, own, 'qgroups')
  return existsSync(groups) ? groups : null
}

/**
 * Enables direct I/O for the loop device. Writes to the pool then bypass the page cache of the pool's file: 256 MiB
 * with a sync took 1.3 s instead of 3.1 s (2026-11). If the file system of the pool's file doesn't support direct I/O,
 * nothing changes.
 */
async function enableDirectIo(root: string): Promise<void> {
  const device = (await mountAt(root))?.source ?? ''
  await tryCommand('losetup', ['--direct-io=on', device], { timeoutMs: TIMEOUT_MS })
}

async function readIfThere(path: string): Promise<string | null> {
  return existsSync(path) ? readFile(path, 'utf8') : null
}
