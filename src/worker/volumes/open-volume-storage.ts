import { existsSync } from 'node:fs'
import { readFile, readdir } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { tryCommand } from '../../lib/run-command.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import { makeBtrfs } from './btrfs-commands.ts'
import { makeBtrfsStorage } from './btrfs-storage.ts'
import { openFolderStorage } from './folder-storage.ts'
import { openPoolGrowth } from './pool-growth.ts'
import { openVolumePool, volumePoolFile } from './volume-pool.ts'
import type { VolumeStorage } from './volume-storage.ts'

/** The settings for the storage of volumes. */
export type StorageSettings = {
  /** The installation's own folder for volumes. */
  readonly dir: string
  /** The name of the pool's mount folder on this machine. */
  readonly key: string
  /** A folder on a file system that all workers mount. If null, this machine stores its own volumes. */
  readonly sharedDir: string | null
  /** The size of the volume pool. If null, it is half of the free space at the first start. */
  readonly volumePoolGib: number | null
}

type StorageDeps = {
  readonly uidShift: number
  /** The reserve of the file system with the volumes. */
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly clock: Clock
  readonly log: Log
}

/**
 * The kind of storage to use on this machine: a volume pool, or plain folders with the reason why they can't enforce
 * caps.
 */
type StorageChoice =
  | { readonly kind: 'pool'; readonly isNew: boolean }
  | { readonly kind: 'folders'; readonly root: string; readonly isShared: boolean; readonly whyNoCaps: string }

const PROGRAMS = ['btrfs', 'mkfs.btrfs', 'losetup', 'mount', 'perl'] as const
const FOLDERS = 'folders'
const MODPROBE_TIMEOUT_MS = 10_000

/**
 * Opens the storage for volumes. Existing volumes keep their kind of storage. A machine without volumes creates a pool,
 * or uses plain folders if it can't create one. Rejects when an existing pool can't be opened, because sandboxes would
 * find empty folders instead of their volumes.
 */
export async function openVolumeStorage(settings: StorageSettings, deps: StorageDeps): Promise<VolumeStorage> {
  const { uidShift, reserve, clock, log } = deps
  const choice = await chooseStorage(settings)
  await warnOfStrayFolders(settings.dir, log)
  if (choice.kind === 'folders') return openFolderStorage({ ...choice, uidShift })
  try {
    const pool = await openVolumePool({ ...settings, sizeGib: settings.volumePoolGib, clock, log })
    const how = `btrfs quota groups in a pool of ${String(pool.sizeBytes / 1024 ** 3)} GiB (${volumePoolFile(settings.dir)})`
    const report = { is_shared: false, enforces_caps: true, how }
    await using opened = new AsyncDisposableStack() // a failure below closes what is open by then
    opened.defer(() => pool.close())
    const { root, quotaFolder } = pool
    const btrfs = makeBtrfs(root)
    const growth = await openPoolGrowth({ btrfs, file: volumePoolFile(settings.dir), quotaFolder, reserve, clock, log })
    opened.defer(() => growth.close())
    const parts = opened.move()
    return makeBtrfsStorage({
      root,
      uidShift,
      report,
      promisedBytes: () => growth.promisedBytes(),
      close: () => parts.disposeAsync(),
    })
  } catch (error) {
    if (!choice.isNew)
      throw new Error(`the volumes in ${volumePoolFile(settings.dir)} can't be reached: ${messageOf(error)}`, {
        cause: error,
      })
    log.warn({ error }, 'no volume pool can be created here: caps on volumes are refused')
    return openFolderStorage({ ...folderChoice(settings, `no pool could be made: ${messageOf(error)}`), uidShift })
  }
}

/** Chooses the storage for the settings, without opening it. */
export async function chooseStorage(settings: Omit<StorageSettings, 'key'>): Promise<StorageChoice> {
  if (settings.sharedDir !== null) {
    const whyNoCaps = 'the quotas of a file system that machines share are not in the hands of a worker'
    return { kind: 'folders', root: settings.sharedDir, isShared: true, whyNoCaps }
  }
  if (existsSync(volumePoolFile(settings.dir))) return { kind: 'pool', isNew: false }
  const { root } = folderChoice(settings, '')
  if (existsSync(root) && (await readdir(root)).length > 0)
    return folderChoice(settings, 'volumes lie there already, and a pool would hide them')
  const flaw = await whyNoVolumePool()
  return flaw === null ? { kind: 'pool', isNew: true } : folderChoice(settings, flaw)
}

function folderChoice(
  settings: Pick<StorageSettings, 'dir'>,
  whyNoCaps: string,
): Extract<StorageChoice, { readonly kind: 'folders' }> {
  return { kind: 'folders', root: join(settings.dir, FOLDERS), isShared: false, whyNoCaps }
}

/** Returns the reason why this machine can't have a volume pool. Null when it can. */
export async function whyNoVolumePool(): Promise<string | null> {
  if (process.platform !== 'linux') return 'the machine does not run Linux'
  if (process.getuid?.() !== 0) return 'the worker is not root, and only root can mount a file system'
  const path = (process.env['PATH'] ?? '').split(delimiter)
  const missing = PROGRAMS.find((name) => !path.some((folder) => existsSync(join(folder, name))))
  if (missing !== undefined) return `the program '${missing}' is missing (packages btrfs-progs, mount, perl-base)`
  if (await hasBtrfs()) return null
  return 'the kernel has no btrfs'
}

async function hasBtrfs(): Promise<boolean> {
  const isListed = async (): Promise<boolean> => /^\s*btrfs$/m.test(await readFile('/proc/filesystems', 'utf8'))
  if (await isListed()) return true
  try {
    await tryCommand('modprobe', ['btrfs'], { timeoutMs: MODPROBE_TIMEOUT_MS })
  } catch {
    return false // without modprobe there are no modules
  }
  return isListed()
}

/**
 * Logs a warning if the folder of all volumes contains files outside any volume. Somebody may have copied them there,
 * but no sandbox can see them.
 */
async function warnOfStrayFolders(dir: string, log: Log): Promise<void> {
  if (!existsSync(dir)) return
  for (const entry of await readdir(dir, { withFileTypes: true })) {
    if (!entry.isDirectory() || entry.name === FOLDERS) continue
    const folder = join(dir, entry.name)
    if ((await readdir(folder)).length > 0)
      log.warn({ folder }, 'this folder holds files but is not a volume: copy them into a volume')
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
