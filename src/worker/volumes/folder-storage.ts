import { chmod, mkdir, open, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredVolume } from '../../contract/workers/worker-protocol.ts'
import { isDirectory } from '../../lib/files.ts'
import { tryCommand } from '../../lib/run-command.ts'
import { findMountsOfFolder } from '../processes/mountinfo.ts'
import { deleteTree } from './temporary-files.ts'
import {
  type VolumeKey,
  type VolumeStorage,
  assignToSandboxRoot,
  parseVolumeSubpath,
  volumeSubpath,
} from './volume-storage.ts'

type FolderStorageOptions = {
  /** The folder of all volumes. Created when missing. */
  readonly root: string
  /** The id of the host user that is user 0 in the sandboxes. */
  readonly uidShift: number
  readonly isShared: boolean
  /** The reason why caps can't be enforced on this file system. It is shown to operators. */
  readonly whyNoCaps: string
}

/** The time limit for counting. 10 minutes are enough for about 50 million files. */
const COUNT_TIMEOUT_MS = 600_000
/** The maximum number of volumes that one command counts. */
const COUNTED_AT_ONCE = 100

/**
 * Keeps volumes as plain folders on any file system. Caps can't be enforced there, so a volume with a cap is refused.
 */
export async function openFolderStorage({
  root,
  uidShift,
  isShared,
  whyNoCaps,
}: FolderStorageOptions): Promise<VolumeStorage> {
  await mkdir(root, { recursive: true, mode: 0o700 })
  const refuseCaps = ({ capacity_bytes, org_capacity_bytes }: DesiredVolume): void => {
    if (capacity_bytes === null && org_capacity_bytes === null) return
    throw new Error(`a cap on a volume can't be enforced here: ${whyNoCaps}`)
  }
  return {
    report: { is_shared: isShared, enforces_caps: false, how: `plain folders in ${root}: ${whyNoCaps}` },
    root,
    folderLimits: null,
    hasDirectWrites: false,
    promisedBytes: () => 0,
    async open(volume) {
      refuseCaps(volume)
      const path = join(root, volumeSubpath(volume))
      const orgFolder = join(root, volume.org_id)
      await mkdir(orgFolder, { recursive: true })
      await chmod(orgFolder, 0o700) // sandboxes reach their volumes by bind mounts, and local users must not
      await mkdir(path, { recursive: true, mode: 0o755 })
      await assignToSandboxRoot(path, uidShift)
      return path
    },
    applyCaps(volume) {
      return Promise.resolve(volume).then(refuseCaps)
    },
    async remove(volume) {
      const path = join(root, volumeSubpath(volume))
      if (!(await isDirectory(path))) return
      const mounted = await findMountsOfFolder(path)
      if (mounted.length > 0)
        throw new Error(`volume ${volumeSubpath(volume)} is mounted: ${mounted.slice(0, 3).join(', ')}`)
      // Node's own `rm` fails at folders that are nested deeper than a path is long.
      await using orgFolder = await open(join(root, volume.org_id))
      if (!(await deleteTree(orgFolder, volume.volume_id)))
        throw new Error(`volume ${volumeSubpath(volume)} could not be deleted completely`)
    },
    async measure() {
      const volumes = await listVolumes(root)
      const used = await countBytes(volumes.map((volume) => join(root, volumeSubpath(volume))))
      return volumes.flatMap((volume) => {
        const used_bytes = used.get(join(root, volumeSubpath(volume)))
        return used_bytes === undefined ? [] : [{ ...volume, used_bytes }] // the volume was deleted meanwhile
      })
    },
    close: () => Promise.resolve(),
  }
}

async function listVolumes(root: string): Promise<readonly VolumeKey[]> {
  const places = (await readdir(root)).map(async (org) =>
    (await isDirectory(join(root, org))) ? (await readdir(join(root, org))).map((name) => `${org}/${name}`) : [],
  )
  return (await Promise.all(places))
    .flat()
    .map(parseVolumeSubpath)
    .filter((volume) => volume !== null)
}

/** Counts the disk usage of folders with du(1). Returns bytes by path. */
async function countBytes(folders: readonly string[]): Promise<ReadonlyMap<string, number>> {
  const counted = new Map<string, number>()
  for (let from = 0; from < folders.length; from += COUNTED_AT_ONCE) {
    const some = folders.slice(from, from + COUNTED_AT_ONCE)
    // If files are deleted while du counts, it exits with an error but still prints the other counts.
    const { stdout } = await tryCommand('du', ['-sk', '--', ...some], { timeoutMs: COUNT_TIMEOUT_MS })
    for (const [, kib, path = ''] of stdout.matchAll(/^(\d+)\t(.+)$/gm)) counted.set(path, Number(kib) * 1024)
  }
  return counted
}
