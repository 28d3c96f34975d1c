/**
 * Limits how much the volume pool grows. Its file is sparse, so it may promise more than the file system below has. If that
 * file system filled up, the kernel would lose data that a sandbox has written already. A quota group of all volumes
 * therefore gets a share of what is free, and writes beyond it fail at once with EDQUOT, as those beyond a cap do.
 */
import { readFile, stat, statfs } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../lib/clock.ts'
import { takenBytes } from '../../lib/files.ts'
import type { Log } from '../../lib/log.ts'
import { repeat } from '../../lib/turns/repeat.ts'
import type { DiskReserve } from '../disk-reserve.ts'
import type { Btrfs } from './btrfs-commands.ts'

/** The quota group of all organizations' groups. */
export const ALL_VOLUMES_GROUP = '2/1'

export type PoolGrowth = {
  /** What the pool may still take of the file system below until the next measurement. */
  promisedBytes(): number
  /** Ends the measurements. The limit stays. */
  close(): Promise<void>
}

type PoolGrowthInput = {
  readonly btrfs: Btrfs
  /** The pool's file. */
  readonly file: string
  /** The folder in which the kernel shows the pool's quota groups. Null: this kernel shows none, and nothing is limited. */
  readonly quotaFolder: string | null
  readonly reserve: Pick<DiskReserve, 'freeMib'>
  readonly clock: Clock
  readonly log: Log
}

const MIB = 1024 * 1024
const INTERVAL_MS = 1_000
/** No machine writes more than this between two measurements. */
const LARGEST_BURST_BYTES = 8 * 1024 ** 3

/**
 * Puts all organizations' groups into the group of all volumes, limits that group, and measures again each second until
 * `close`.
 */
export async function openPoolGrowth({
  btrfs,
  file,
  quotaFolder,
  reserve,
  clock,
  log,
}: PoolGrowthInput): Promise<PoolGrowth> {
  const groups = await btrfs.groups({ isSynced: false })
  if (!groups.has(ALL_VOLUMES_GROUP)) await btrfs.createGroup(ALL_VOLUMES_GROUP)
  for (const [group, { parents }] of groups)
    if (group.startsWith('1/') && !parents.includes(ALL_VOLUMES_GROUP))
      await btrfs.assignGroup(group, ALL_VOLUMES_GROUP)
  if (quotaFolder === null) {
    log.info({ file }, 'this kernel shows no quota groups, so volumes can fill the file system of their pool')
    return { promisedBytes: () => 0, close: () => Promise.resolve() }
  }
  const readCount = async (name: string): Promise<number> =>
    Number(await readFile(join(quotaFolder, ALL_VOLUMES_GROUP.replace('/', '_'), name), 'utf8'))
  let limitBytes = groups.get(ALL_VOLUMES_GROUP)?.limitBytes ?? null
  let promisedBytes = 0

  async function limit(): Promise<void> {
    // Written data is reserved until the next commit, and referenced from then on.
    const usedBytes = (await readCount('referenced')) + (await readCount('rsv_data'))
    const { bavail, bsize } = await statfs(btrfs.root)
    const measured = {
      usedBytes,
      takenBytes: takenBytes(await stat(file)),
      poolFreeBytes: bavail * bsize,
      spareBytes: (await reserve.freeMib()) * MIB,
    }
    const { owedBytes, allowedBytes } = poolAllowance(measured)
    const wanted = allowedBytes === null ? null : usedBytes + allowedBytes
    if (mustChange(limitBytes, wanted, usedBytes)) {
      await btrfs.setLimit(ALL_VOLUMES_GROUP, wanted)
      limitBytes = wanted
    }
    const leftBytes = limitBytes === null ? measured.poolFreeBytes : Math.max(0, limitBytes - usedBytes)
    promisedBytes = owedBytes + Math.min(leftBytes, LARGEST_BURST_BYTES)
  }

  await limit()
  const repetition = repeat(limit, {
    pauseMs: INTERVAL_MS,
    clock,
    onFailure: (error) => {
      log.warn({ error }, 'the growth of volumes could not be limited, so sandboxes can fill the file system')
    },
  })
  return { promisedBytes: () => promisedBytes, close: () => repetition.close() }
}

/** Sizes of the pool and of the file system below it. */
export type MeasuredPool = {
  /** What the files of all volumes take in the pool. */
  readonly usedBytes: number
  /** What the pool's file takes of the file system below. */
  readonly takenBytes: number
  readonly poolFreeBytes: number
  /** What the file system below has free beyond its reserve. */
  readonly spareBytes: number
}

/**
 * Returns by how much the volumes may grow until the next measurement: by half of what is free; the disks of containers
 * share the rest. Null: by all that the pool has. `owedBytes` is used in the pool, for example by `fallocate`, and not yet
 * taken below.
 */
export function poolAllowance({ usedBytes, takenBytes, poolFreeBytes, spareBytes }: MeasuredPool): {
  readonly owedBytes: number
  readonly allowedBytes: number | null
} {
  const owedBytes = Math.max(0, usedBytes - takenBytes)
  const shareBytes = Math.floor(Math.max(0, spareBytes - owedBytes) / 2)
  return { owedBytes, allowedBytes: shareBytes >= poolFreeBytes ? null : shareBytes }
}

/** Whether a limit differs so much from the wanted one that a command is worth it. */
function mustChange(limit: number | null, wanted: number | null, usedBytes: number): boolean {
  if (limit === null || wanted === null) return limit !== wanted
  const [left, wantedLeft] = [limit - usedBytes, wanted - usedBytes]
  return left > wantedLeft * 1.1 + MIB || left < wantedLeft * 0.75
}
