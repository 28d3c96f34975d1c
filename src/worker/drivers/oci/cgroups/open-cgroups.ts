import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { openV1 } from './cgroup-v1.ts'
import { openV2 } from './cgroup-v2.ts'
import type { Cgroups } from './cgroups.ts'
import type { ParentLimits } from './sandbox-limits.ts'

/**
 * Opens the cgroups beneath `/<parent>`, in the version that this machine has, and limits the parent. Rejects when a
 * controller is missing.
 */
export async function openCgroups(
  parent: string,
  limits: ParentLimits,
  mountPoint = '/sys/fs/cgroup',
): Promise<Cgroups> {
  const open = existsSync(join(mountPoint, 'cgroup.controllers')) ? openV2 : openV1
  const cgroups = await open(parent, limits, mountPoint)
  const forCommands = new Map<string, readonly string[]>() // spares a busy sandbox the same work for each channel
  const limitsOfRuns = new Map<string, string>() // those of a warm sandbox are usually those of the run that takes it
  return {
    ...cgroups,
    create(name, runLimits) {
      const text = JSON.stringify(runLimits)
      if (limitsOfRuns.get(name) === text) return
      cgroups.create(name, runLimits)
      limitsOfRuns.set(name, text)
    },
    createForCommands(name, commandLimits) {
      const created = forCommands.get(name) ?? cgroups.createForCommands(name, commandLimits)
      forCommands.set(name, created)
      return created
    },
    remove(name) {
      forCommands.delete(name)
      limitsOfRuns.delete(name)
      return cgroups.remove(name)
    },
  }
}

/** Returns the name of the parent cgroup of all runs of the driver with this key. */
export function cgroupParentOf(key: string): string {
  return `sandyard/${key}`
}

/** Returns the folder that contains the cgroups of all runs beneath `/<parent>`. */
export function cgroupFolderOf(parent: string, mountPoint = '/sys/fs/cgroup'): string {
  return join(mountPoint, existsSync(join(mountPoint, 'cgroup.controllers')) ? '' : 'pids', parent)
}
