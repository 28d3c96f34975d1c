import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import { foldersIn, readCounter } from './cgroup-files.ts'
import { cgroupFolderOf } from './open-cgroups.ts'
import { runsOfCgroups } from './sandbox-limits.ts'

/** What a run uses, by the counters of its cgroup. */
export type MeasuredUse = {
  /** The processor time since its start. */
  readonly cpu_ns: number
  /** Its memory, without the cached files that the kernel can drop at once. */
  readonly memory_bytes: number
  readonly processes: number
}

/** The parent of the cgroups of all installations on a machine. */
const ALL_INSTALLATIONS = 'sandyard'

const MOUNT_POINT = '/sys/fs/cgroup'

/**
 * Measures the containers of this machine, by the id of their run. It only reads files of the kernel, so any process may do
 * it. A run that ends meanwhile is left out.
 */
export async function measureUse(mountPoint = MOUNT_POINT): Promise<ReadonlyMap<string, MeasuredUse>> {
  const measured = new Map<string, MeasuredUse>()
  for (const key of await foldersIn(cgroupFolderOf(ALL_INSTALLATIONS, mountPoint))) {
    const parent = join(ALL_INSTALLATIONS, key)
    const readUse = makeUseReader(parent, mountPoint)
    for (const run of runsOfCgroups(await foldersIn(cgroupFolderOf(parent, mountPoint)))) {
      const use = readUse(run)
      if (use !== null) measured.set(run, use)
    }
  }
  return measured
}

/** Makes a function that measures one run beneath the cgroup `parent`. It returns null if the run has no cgroup. */
export function makeUseReader(parent: string, mountPoint = MOUNT_POINT): (run: string) => MeasuredUse | null {
  const isV2 = existsSync(join(mountPoint, 'cgroup.controllers'))
  const read = isV2 ? readV2 : readV1
  return (run) => read(mountPoint, join(parent, run))
}

function readV2(mountPoint: string, path: string): MeasuredUse | null {
  const dir = join(mountPoint, path)
  const cpuUs = readCounter(join(dir, 'cpu.stat'), 'usage_usec')
  const memory = readNumberSync(join(dir, 'memory.current'))
  const cached = readCounter(join(dir, 'memory.stat'), 'inactive_file')
  const processes = readNumberSync(join(dir, 'pids.current'))
  return toUse({ cpu_ns: cpuUs === null ? null : cpuUs * 1000, memory, cached, processes })
}

function readV1(mountPoint: string, path: string): MeasuredUse | null {
  const fileOf = (controller: string, file: string): string => join(mountPoint, controller, path, file)
  const cpu_ns = readNumberSync(fileOf('cpuacct', 'cpuacct.usage'))
  const memory = readNumberSync(fileOf('memory', 'memory.usage_in_bytes'))
  const cached = readCounter(fileOf('memory', 'memory.stat'), 'total_inactive_file')
  const processes = readNumberSync(fileOf('pids', 'pids.current'))
  return toUse({ cpu_ns, memory, cached, processes })
}

function readNumberSync(path: string): number | null {
  const text = readFileSyncOrNull(path)
  return text === null ? null : Number(text)
}

type Counters = {
  readonly cpu_ns: number | null
  readonly memory: number | null
  readonly cached: number | null
  readonly processes: number | null
}

function toUse({ cpu_ns, memory, cached, processes }: Counters): MeasuredUse | null {
  if (cpu_ns === null || memory === null || processes === null) return null
  return { cpu_ns, memory_bytes: Math.max(0, memory - (cached ?? 0)), processes }
}
