import { existsSync } from 'node:fs'
import { mkdir, readdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { runCommand } from '../../lib/run-command.ts'
import { readMounts } from '../processes/mountinfo.ts'
import { makeBtrfs, type Btrfs } from './btrfs-commands.ts'
import { ownGroup, readState } from './btrfs-groups.ts'
import { idsInFolders } from './subvolume-tree.ts'
import { ensureQuotasConsistent } from './volume-pool.ts'
import { parseVolumeSubpath, type VolumeKey } from './volume-storage.ts'

/** The folder of snapshots in a volume pool. It is no volume, because its name is not an id. */
const SNAPSHOTS = 'backup'

/** The state of all volumes of a pool at one moment. */
export type VolumeSnapshots = {
  readonly volumes: readonly (VolumeKey & { readonly dir: string })[]
  /** What the snapshots lack. */
  readonly leftOut: readonly string[]
} & AsyncDisposable

/** How often to snapshot a volume whose folders with limits are moved meanwhile. */
const ATTEMPTS = 3
const UMOUNT_TIMEOUT_MS = 20_000

/** Takes snapshots of all volumes in the pool at `root`. Disposing deletes them. Deletes those of a killed process. */
export async function takeVolumeSnapshots(root: string): Promise<VolumeSnapshots> {
  const btrfs = makeBtrfs(root)
  await deleteVolumeSnapshots(root)
  await mkdir(join(root, SNAPSHOTS), { recursive: true, mode: 0o700 })
  const { ids, groups } = await readState(btrfs)
  const volumes = []
  const leftOut = []
  for (const [subpath, id] of ids) {
    const key = parseVolumeSubpath(subpath)
    if (key === null) continue
    // A snapshot outside the groups of its source makes the kernel's counts inconsistent, and caps no longer hold.
    const parents = groups.get(ownGroup(id))?.parents ?? []
    const { dir, missing } = await snapshotVolume(btrfs, { subpath, name: key.volume_id, parents })
    if (missing > 0)
      leftOut.push(`${String(missing)} folders of the volume ${subpath} with a quota, which were moved meanwhile`)
    volumes.push({ ...key, dir })
  }
  await ensureQuotasConsistent(root) // kernels before 6.8 may stop counting all the same
  return { volumes, leftOut, [Symbol.asyncDispose]: () => deleteVolumeSnapshots(root) }
}

type SnapshotInput = { readonly subpath: string; readonly name: string; readonly parents: readonly string[] }

async function snapshotVolume(
  btrfs: Btrfs,
  { subpath, name, parents }: SnapshotInput,
): Promise<{ readonly dir: string; readonly missing: number }> {
  for (let attempt = 1; ; attempt += 1) {
    const dir = join(btrfs.root, SNAPSHOTS, `${name}-${String(attempt)}`)
    const missing = await btrfs.snapshotSubvolume(join(btrfs.root, subpath), dir, parents)
    if (missing === 0 || attempt === ATTEMPTS) return { dir, missing }
  }
}

/** Deletes all snapshots of a pool. Does nothing if there is no pool. Only the holder of the lock of backups may do that. */
export async function deleteVolumeSnapshots(root: string): Promise<void> {
  const btrfs = makeBtrfs(root)
  const folder = join(btrfs.root, SNAPSHOTS)
  if (!existsSync(folder)) return
  for (const name of await readdir(folder)) await detach(join(folder, name))
  for (const id of idsInFolders(await btrfs.subvolumes())) await btrfs.deleteSubvolume(id)
  await rmdir(folder)
}

/** Detaches a mount with everything beneath it, whose paths sandboxes chose. Does nothing if the path is no mount point. */
async function detach(path: string): Promise<void> {
  while ((await readMounts('self')).some(({ point }) => point === path))
    await runCommand('umount', ['--lazy', path], { timeoutMs: UMOUNT_TIMEOUT_MS })
}
