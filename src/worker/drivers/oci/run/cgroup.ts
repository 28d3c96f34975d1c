import { existsSync, writeFileSync } from 'node:fs'
import { mkdir, readdir, rmdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { isFileNotFound, readFileOrNull } from '../../../../lib/files.ts'
import { folderHash } from '../../../mounts.ts'

/**
 * The cgroups that limit runs. The driver creates one for each run, as the parent of the runtime's own cgroup. The runtime
 * removes its cgroup when the container ends; the driver's cgroup keeps the counters that show whether memory ran out. Works on
 * cgroup v2 and on v1 hierarchies.
 */
export type Cgroups = {
  readonly version: 1 | 2
  /** Creates a run's cgroup with its limits. May be repeated. */
  create(name: string, limits: CgroupLimits): Promise<void>
  /** Lists the host's ids of all processes in a run's cgroup and beneath it. Empty if the cgroup doesn't exist. */
  pids(name: string): Promise<readonly number[]>
  /** Whether the run reached its memory limit. v2 counts kills; v1 only shows that all of the memory was in use. */
  hasRunOutOfMemory(name: string): Promise<boolean>
  /** Removes a run's cgroup. Rejects while a process is left in it. Succeeds for an unknown cgroup. */
  remove(name: string): Promise<void>
  /** Lists the names of all existing cgroups of runs. */
  list(): Promise<readonly string[]>
  /** Removes the parent cgroup, which must be empty. */
  close(): Promise<void>
  /** Returns the `cgroupsPath` for the runtime's configuration of a run. */
  runtimePath(name: string): string
}

type CgroupLimits = { readonly memoryBytes: number; readonly vcpus: number; readonly pids: number }

/** The v1 hierarchies that the limits need. */
const V1_CONTROLLERS = ['memory', 'cpu', 'pids'] as const
/** Every v1 hierarchy in which a runtime creates its own cgroup. */
const V1_HIERARCHIES = [
  ...V1_CONTROLLERS,
  'cpuacct',
  'cpuset',
  'devices',
  'freezer',
  'blkio',
  'systemd',
  'net_cls',
  'net_prio',
  'perf_event',
  'hugetlb',
  'unified',
] as const
const CPU_PERIOD_US = 100_000
/** The name of the runtime's own cgroup beneath the driver's. */
const CHILD = 'c'

/** Opens the cgroups beneath `/<parent>`, in the version that this machine has. Rejects when a controller is missing. */
export async function openCgroups(parent: string, mountPoint = '/sys/fs/cgroup'): Promise<Cgroups> {
  return existsSync(join(mountPoint, 'cgroup.controllers'))
    ? await openV2(parent, mountPoint)
    : await openV1(parent, mountPoint)
}

/** Returns the name of the parent cgroup of all runs of the driver whose folder is `dir`. */
export function cgroupParentOf(dir: string): string {
  return `sandyard/${folderHash(dir)}`
}

/** Returns the folder that contains the cgroups of all runs beneath `/<parent>`. */
export function cgroupFolderOf(parent: string, mountPoint = '/sys/fs/cgroup'): string {
  return join(mountPoint, existsSync(join(mountPoint, 'cgroup.controllers')) ? '' : 'pids', parent)
}

async function openV2(parent: string, mountPoint: string): Promise<Cgroups> {
  const base = join(mountPoint, parent)
  await mkdir(base, { recursive: true })
  for (const folder of pathsDownTo(mountPoint, parent)) await enableControllers(folder)
  return {
    version: 2,
    async create(name, limits) {
      const dir = join(base, name)
      await mkdir(dir, { recursive: true })
      writeSync(join(dir, 'memory.max'), limits.memoryBytes)
      if (existsSync(join(dir, 'memory.swap.max'))) writeSync(join(dir, 'memory.swap.max'), 0)
      writeSync(join(dir, 'cpu.max'), `${String(quotaUs(limits.vcpus))} ${String(CPU_PERIOD_US)}`)
      writeSync(join(dir, 'pids.max'), limits.pids)
    },
    pids: (name) => pidsBelow(join(base, name)),
    async hasRunOutOfMemory(name) {
      const events = (await readFileOrNull(join(base, name, 'memory.events'))) ?? ''
      return Number(/^oom_kill (\d+)$/m.exec(events)?.[1] ?? 0) > 0
    },
    remove: (name) => removeTree(join(base, name)),
    list: () => foldersIn(base),
    close: () => removeTree(base),
    runtimePath: (name) => join('/', parent, name, CHILD),
  }
}

async function openV1(parent: string, mountPoint: string): Promise<Cgroups> {
  const base = (controller: string): string => join(mountPoint, controller, parent)
  for (const controller of V1_CONTROLLERS) {
    if (!existsSync(join(mountPoint, controller)))
      throw new Error(`the cgroup controller '${controller}' is not mounted at ${mountPoint}`)
  }
  await Promise.all(V1_CONTROLLERS.map((controller) => mkdir(base(controller), { recursive: true })))
  await writeIfPresent(join(base('memory'), 'memory.use_hierarchy'), '1')
  const hierarchies = V1_HIERARCHIES.filter((controller) => existsSync(join(mountPoint, controller)))
  return {
    version: 1,
    async create(name, limits) {
      await Promise.all(V1_CONTROLLERS.map((controller) => mkdir(join(base(controller), name), { recursive: true })))
      const memory = join(base('memory'), name)
      writeSync(join(memory, 'memory.limit_in_bytes'), limits.memoryBytes)
      const memoryAndSwap = join(memory, 'memory.memsw.limit_in_bytes')
      if (existsSync(memoryAndSwap)) writeSync(memoryAndSwap, limits.memoryBytes)
      writeSync(join(base('cpu'), name, 'cpu.cfs_period_us'), CPU_PERIOD_US)
      writeSync(join(base('cpu'), name, 'cpu.cfs_quota_us'), quotaUs(limits.vcpus))
      writeSync(join(base('pids'), name, 'pids.max'), limits.pids)
    },
    pids: (name) => pidsBelow(join(base('pids'), name)),
    async hasRunOutOfMemory(name) {
      const read = (file: string): Promise<number | undefined> => readNumber(join(base('memory'), name, file))
      // The runtime's cgroup counted the kills and no longer exists. `failcnt` stays 0 in this cgroup (kernel 6.18, 2026-11).
      const maxUsage = (await read('memory.max_usage_in_bytes')) ?? 0
      return maxUsage >= ((await read('memory.limit_in_bytes')) ?? Infinity)
    },
    async remove(name) {
      await Promise.all(hierarchies.map((controller) => removeTree(join(base(controller), name))))
    },
    async close() {
      await Promise.all(hierarchies.map((controller) => removeTree(base(controller))))
    },
    async list() {
      const names = await Promise.all(hierarchies.map((controller) => foldersIn(base(controller))))
      return [...new Set(names.flat())]
    },
    runtimePath: (name) => join('/', parent, name, CHILD),
  }
}

/**
 * Writes a cgroup file on this thread. The kernel needs a few microseconds for it, and a thread switch 45 us of processor time
 * (2026-11).
 */
function writeSync(path: string, value: number | string): void {
  writeFileSync(path, String(value))
}

function quotaUs(vcpus: number): number {
  return Math.max(1000, Math.round(vcpus * CPU_PERIOD_US)) // the kernel's smallest quota is 1 ms
}

function pathsDownTo(mountPoint: string, parent: string): readonly string[] {
  const parts = parent.split('/').filter((part) => part !== '')
  return parts.reduce<readonly string[]>(
    (paths, _, index) => [...paths, join(mountPoint, ...parts.slice(0, index + 1))],
    [mountPoint],
  )
}

async function enableControllers(folder: string): Promise<void> {
  for (const controller of ['memory', 'cpu', 'pids'])
    await writeFile(join(folder, 'cgroup.subtree_control'), `+${controller}`)
}

async function writeIfPresent(path: string, value: string): Promise<void> {
  if (existsSync(path)) await writeFile(path, value)
}

async function readNumber(path: string): Promise<number | undefined> {
  const text = await readFileOrNull(path)
  return text === null ? undefined : Number(text)
}

async function pidsBelow(dir: string): Promise<readonly number[]> {
  const own = ((await readFileOrNull(join(dir, 'cgroup.procs'))) ?? '').split('\n').filter((line) => line !== '')
  const below = await Promise.all((await foldersIn(dir)).map((name) => pidsBelow(join(dir, name))))
  return [...own.map(Number), ...below.flat()]
}

async function removeTree(dir: string): Promise<void> {
  for (const name of await foldersIn(dir)) await removeTree(join(dir, name))
  try {
    await rmdir(dir)
  } catch (error) {
    if (!isFileNotFound(error)) throw error
  }
}

async function foldersIn(dir: string): Promise<readonly string[]> {
  try {
    const entries = await readdir(dir, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name)
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENODEV')) return []
    throw error
  }
}
