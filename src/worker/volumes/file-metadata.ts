import type { BigIntStats } from 'node:fs'
import type { VolumeFile } from '../../contract/volumes/volume-protocol.ts'

/** The user that stands for all those that a sandbox can't see (the kernel's overflow user). */
const OVERFLOW_ID = 65_534
/** How many users a sandbox has. */
const IDS_PER_SANDBOX = 65_536
const WRITABLE_BITS = 0o222
/** What ISO 8601 with four digits can say. A sandbox can give a file any time, also such as no date can hold. */
const EARLIEST_MS = -62_135_596_800_000n // 0001-01-01
const LATEST_MS = 253_402_300_799_999n // 9999-12-31

/** Whether clients are shown it: a file or a folder. Links are shown as what they lead to, all else is hidden. */
export function isVisible(stats: BigIntStats): boolean {
  return stats.isFile() || stats.isDirectory()
}

/** A file or folder as clients see it; `path` is from the root with a leading slash. */
export function describeFile(path: string, stats: BigIntStats, uidShift: number): VolumeFile {
  const mode = Number(stats.mode)
  return {
    path,
    kind: stats.isDirectory() ? 'directory' : 'file',
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
