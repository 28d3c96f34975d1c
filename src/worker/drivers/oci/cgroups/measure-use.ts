import { join } from 'node:path'
import { readFileOrNull } from '../../../../lib/files.ts'
import { foldersIn, readCounter, readNumber } from './cgroup-files.ts'
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

/**
 * Measures the containers of this machine, by the id of their run. It only reads files of the kernel, so any process may do
 * it. A run that ends meanwhile is left out.
 */
export async function measureUse(mountPoint = '/sys/fs/cgroup'): Promise<ReadonlyMap<string, MeasuredUse>> {
  const isV2 = (await readFileOrNull(join(mountPoint, 'cgroup.controllers'))) !== null
  const read = isV2 ? readV2 : readV1
  const measured = new Map<string, MeasuredUse>()
  for (const key of await foldersIn(cgroupFolderOf(ALL_INSTALLATIONS, mountPoint)))
    for (const run of runsOfCgroups(await foldersIn(cgroupFolderOf(join(ALL_INSTALLATIONS, key), mountPoint)))) {
      const use = await read(mountPoint, join(ALL_INSTALLATIONS, key, run))
      if (use !== null) measured.set(run, use)
    }
  return measured
}

async function readV2(mountPoint: string, path: string): Promise<MeasuredUse | null> {
  const dir = join(mountPoint, path)
  const cpuUs = readCounter(join(dir, 'cpu.stat'), 'usage_usec')
  const memory = await readNumber(join(dir, 'memory.current'))
  const cached = readCounter(join(dir, 'memory.stat'), 'inactive_file')
  const processes = await readNumber(join(dir, 'pids.current'))
  return toUse({ cpu_ns: cpuUs === null ? undefined : cpuUs * 1000, memory, cached, processes })
}

async function readV1(mountPoint: string, path: string): Promise<MeasuredUse | null> {
  const fileOf = (controller: string, file: string): string => join(mountPoint, controller, path, file)
  const cpu_ns = await readNumber(fileOf('cpuacct', 'cpuacct.usage'))
  const memory = await readNumber(fileOf('memory', 'memory.usage_in_bytes'))
  const cached = readCounter(fileOf('memory', 'memory.stat'), 'total_inactive_file')
  const processes = await readNumber(fileOf('pids', 'pids.current'))
  return toUse({ cpu_ns, memory, cached, processes })
}

type Counters = {
  readonly cpu_ns: number | undefined
  readonly memory: number | undefined
  readonly cached: number | null
  readonly processes: number | undefined
}

function toUse({ cpu_ns, memory, cached, processes }: Counters): MeasuredUse | null {
  if (cpu_ns === undefined || memory === undefined || processes === undefined) return null
  return { cpu_ns, memory_bytes: Math.max(0, memory - (cached ?? 0)), processes }
}
