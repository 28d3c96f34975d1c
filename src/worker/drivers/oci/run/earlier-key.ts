import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { readdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../../../lib/clock.ts'
import type { CommandRunner } from '../../../../lib/run-command.ts'
import { mountFolderOf, RUN_FOLDER, unmountBelow } from '../../../mounts.ts'
import { foldersIn, pidsBelow, removeTree } from '../cgroups/cgroup-files.ts'
import { cgroupFolderOf, cgroupParentOf } from '../cgroups/open-cgroups.ts'
import { removeMounts } from './release.ts'

const CGROUP_ROOT = '/sys/fs/cgroup'
/** The keys of earlier releases: a hash of the path of the driver's folder, in hex. */
const EARLIER_KEY = /^[0-9a-f]{12}$/

type EarlierInput = {
  /** The driver's folder. */
  readonly dir: string
  /** The path by which an earlier release opened that folder, unless the folder was moved since. */
  readonly earlierDir: string
  readonly clock: Clock
  readonly commands: CommandRunner
}

/**
 * Finds the key under which an earlier release runs sandboxes of this driver: by the path of the driver's folder, or, if the
 * folder was moved, by the ids of its runs. Returns null if no sandbox runs under such a key, and then removes what is left
 * there. A cgroup can't be renamed, so adopted sandboxes keep their key until all have ended.
 */
export async function findEarlierKey(input: EarlierInput): Promise<string | null> {
  for (const key of await listEarlierKeys(input)) {
    if ((await pidsBelow(cgroupFolderOf(cgroupParentOf(key)))).length > 0) return key
    await removeLeftovers(key, input)
  }
  return null
}

async function listEarlierKeys({ dir, earlierDir }: EarlierInput): Promise<readonly string[]> {
  const own = createHash('sha256').update(earlierDir).digest('hex').slice(0, 12)
  const runs = new Set(await foldersIn(join(dir, 'runs')))
  const found = new Set<string>()
  for (const folder of [RUN_FOLDER, cgroupFolderOf('sandyard')])
    for (const key of (await foldersIn(folder)).filter((name) => EARLIER_KEY.test(name)))
      if (key === own || (await foldersIn(join(folder, key))).some((name) => runs.has(name))) found.add(key)
  return [...found]
}

async function removeLeftovers(key: string, deps: EarlierInput): Promise<void> {
  const mountDir = mountFolderOf(key)
  if (existsSync(mountDir)) {
    for (const name of await readdir(mountDir)) await removeMounts({ ...deps, mountDir }, name)
    await unmountBelow(mountDir, deps)
    await rmdir(mountDir)
  }
  for (const hierarchy of ['', ...(await foldersIn(CGROUP_ROOT))])
    await removeTree(join(CGROUP_ROOT, hierarchy, cgroupParentOf(key)))
}
