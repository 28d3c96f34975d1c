import { existsSync } from 'node:fs'
import { mkdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { makeBtrfs } from './btrfs-commands.ts'
import { ensureQuotasConsistent } from './volume-pool.ts'
import { parseVolumeSubpath, type VolumeKey } from './volume-storage.ts'

/** The folder of snapshots in a volume pool. It is no volume, because its name is not an id. */
const SNAPSHOTS = 'backup'

/** The state of all volumes of a pool at one moment. */
export type VolumeSnapshots = {
  readonly volumes: readonly (VolumeKey & { readonly dir: string })[]
} & AsyncDisposable

/** Takes read-only snapshots of all volumes in the pool at `root`. Disposing deletes them. Deletes those of a killed process. */
export async function takeVolumeSnapshots(root: string): Promise<VolumeSnapshots> {
  const btrfs = makeBtrfs(root)
  await deleteSnapshots(root)
  await mkdir(join(root, SNAPSHOTS), { recursive: true, mode: 0o700 })
  const [subvolumes, groups] = [await btrfs.subvolumes(), await btrfs.groups({ isSynced: false })]
  const volumes = []
  for (const [subpath, id] of subvolumes) {
    const key = parseVolumeSubpath(subpath)
    if (key === null) continue
    const path = `${SNAPSHOTS}/${key.volume_id}`
    // A snapshot outside the groups of its source makes the kernel's counts inconsistent, and caps no longer hold.
    await btrfs.snapshotSubvolume(subpath, path, groups.get(`0/${String(id)}`)?.parents ?? [])
    volumes.push({ ...key, dir: join(root, path) })
  }
  await ensureQuotasConsistent(root) // kernels before 6.8 may stop counting all the same
  return { volumes, [Symbol.asyncDispose]: () => deleteSnapshots(root) }
}

async function deleteSnapshots(root: string): Promise<void> {
  const btrfs = makeBtrfs(root)
  for (const path of (await btrfs.subvolumes()).keys())
    if (path.startsWith(`${SNAPSHOTS}/`)) await btrfs.deleteSubvolume(path)
  if (existsSync(join(root, SNAPSHOTS))) await rmdir(join(root, SNAPSHOTS))
}
