import { existsSync, mkdirSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { deviceName } from '../../../processes/mountinfo.ts'
import type { Cgroups } from './cgroups.ts'
import { createDelegated } from './delegated-cgroup.ts'
import {
  foldersIn,
  pidsBelow,
  readCounter,
  readNumber,
  removeTree,
  writeIfPresent,
  writeValue,
} from './cgroup-files.ts'
import {
  CPU_PERIOD_US,
  RUNTIME_CGROUP,
  commandsCgroupOf,
  quotaUs,
  runsOfCgroups,
  weightOf,
  type CgroupLimits,
  type ParentLimits,
} from './sandbox-limits.ts'

/**
 * The hierarchies that the limits need. A process for commands joins them in this order: `commandPids` reads `pids`, so it
 * also lists a process that has not joined the others yet.
 */
const CONTROLLERS = ['pids', 'memory', 'cpu'] as const
/** Where machines with both versions mount version 2 (systemd(1)). */
const V2_HIERARCHY = 'unified'
/** Every hierarchy in which a runtime creates its own cgroup. */
const HIERARCHIES = [
  ...CONTROLLERS,
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
  V2_HIERARCHY,
] as const
const DISK_WEIGHT = 'blkio.bfq.weight'
const SOCKET_MEMORY = 'memory.kmem.tcp.limit_in_bytes'
/**
 * The part of its memory that a sandbox may have in buffers of sockets, which version 1 counts apart: with its default settings,
 * Linux gives TCP less on a machine of that size (tcp(7), `tcp_mem`).
 */
const SOCKET_MEMORY_SHARE = 1 / 8

/** Opens cgroups in the hierarchies of version 1. Implements `openCgroups`. */
export async function openV1(parent: string, limits: ParentLimits, mountPoint: string): Promise<Cgroups> {
  const base = (controller: string): string => join(mountPoint, controller, parent)
  for (const controller of CONTROLLERS) {
    if (!existsSync(join(mountPoint, controller)))
      throw new Error(`the cgroup controller '${controller}' is not mounted at ${mountPoint}`)
  }
  const hierarchies = HIERARCHIES.filter((controller) => existsSync(join(mountPoint, controller)))
  const used = hierarchies.includes('blkio') ? [...CONTROLLERS, 'blkio'] : CONTROLLERS
  await Promise.all(used.map((controller) => mkdir(base(controller), { recursive: true })))
  writeIfPresent(join(base('memory'), 'memory.use_hierarchy'), 1)
  writeValue(join(base('pids'), 'pids.max'), limits.pids)
  const unlowered = limitMemory(base('memory'), limits.memoryBytes)
  const hasV2 = existsSync(join(mountPoint, V2_HIERARCHY, 'cgroup.controllers'))
  const hasDiskWeight = existsSync(join(base('blkio'), DISK_WEIGHT))
  const hasDiskThrottle = existsSync(join(base('blkio'), 'blkio.throttle.read_bps_device'))
  const hasSocketMemory = existsSync(join(base('memory'), SOCKET_MEMORY))
  const createIn = (controllers: readonly string[], name: string, own: CgroupLimits): void => {
    for (const controller of controllers) mkdirSync(join(base(controller), name), { recursive: true })
    setLimits((controller) => join(base(controller), name), own)
  }
  return {
    version: 1,
    initFlaw: hasV2 ? null : `no hierarchy of cgroup version 2 is mounted at ${join(mountPoint, V2_HIERARCHY)}`,
    hasDiskThrottle,
    lacks: [
      ...unlowered,
      ...(hasDiskWeight ? [] : [`disk weights (${DISK_WEIGHT})`]),
      ...(hasDiskThrottle ? [] : ['limits of disk rates (blkio.throttle)']),
      ...(hasSocketMemory ? [] : [`limits of socket buffers (${SOCKET_MEMORY})`]),
    ],
    create(name, runLimits) {
      createIn(hasDiskWeight ? [...CONTROLLERS, 'blkio'] : CONTROLLERS, name, runLimits)
      if (hasSocketMemory) limitSockets(join(base('memory'), name, RUNTIME_CGROUP), runLimits.memoryBytes)
    },
    createForCommands(name, commandLimits) {
      const group = commandsCgroupOf(name)
      createIn(CONTROLLERS, group, commandLimits)
      return CONTROLLERS.map((controller) => join(base(controller), group, 'cgroup.procs'))
    },
    async createForInit(name, owner) {
      // The sandbox sees only this hierarchy, which has no limits. Those of version 1 hold for every process that it starts.
      const dir = join(base(V2_HIERARCHY), name, RUNTIME_CGROUP)
      await createDelegated(dir, owner)
      return [join(dir, 'cgroup.procs')]
    },
    async throttleDisk(name, device, { bytesPerSec, iops }) {
      // In version 1, the kernel applies these limits only to processes of the very cgroup, not of those beneath it.
      const dir = join(base('blkio'), name, RUNTIME_CGROUP)
      await mkdir(dir, { recursive: true })
      for (const direction of ['read', 'write']) {
        const write = (unit: string, rate: number | null): void => {
          const file = `blkio.throttle.${direction}_${unit}_device`
          writeValue(join(dir, file), `${deviceName(device)} ${String(rate ?? 0)}`) // 0: no limit
        }
        write('bps', bytesPerSec)
        write('iops', iops)
      }
    },
    pids: (name) => pidsBelow(join(base('pids'), name)),
    commandPids: (name) => pidsBelow(join(base('pids'), commandsCgroupOf(name))),
    // The kernel counts a kill in the process's own cgroup only, not in those above it.
    memoryKills: (name) => readCounter(join(base('memory'), name, RUNTIME_CGROUP, 'memory.oom_control'), 'oom_kill'),
    async hasReachedMemoryLimit(name) {
      const read = (file: string): Promise<number | undefined> => readNumber(join(base('memory'), name, file))
      const maxUsage = (await read('memory.max_usage_in_bytes')) ?? 0
      return maxUsage >= ((await read('memory.limit_in_bytes')) ?? Infinity)
    },
    async remove(name) {
      await Promise.all(
        hierarchies.map(async (controller) => {
          await removeTree(join(base(controller), name))
          await removeTree(join(base(controller), commandsCgroupOf(name)))
        }),
      )
    },
    async close() {
      await Promise.all(hierarchies.map((controller) => removeTree(base(controller))))
    },
    async list() {
      const names = await Promise.all(hierarchies.map((controller) => foldersIn(base(controller))))
      return runsOfCgroups(names.flat())
    },
    runtimePath: (name) => join('/', parent, name, RUNTIME_CGROUP),
  }
}

function setLimits(dirOf: (controller: string) => string, { memoryBytes, vcpus, pids }: CgroupLimits): void {
  const memory = dirOf('memory')
  writeValue(join(memory, 'memory.limit_in_bytes'), memoryBytes)
  writeIfPresent(join(memory, 'memory.memsw.limit_in_bytes'), memoryBytes)
  const cpu = dirOf('cpu')
  writeValue(join(cpu, 'cpu.cfs_period_us'), CPU_PERIOD_US)
  writeValue(join(cpu, 'cpu.cfs_quota_us'), quotaUs(vcpus))
  writeValue(join(cpu, 'cpu.shares'), weightOf(vcpus, { perVcpu: 1024, least: 2, most: 262_144 }))
  writeValue(join(dirOf('pids'), 'pids.max'), pids)
  writeIfPresent(join(dirOf('blkio'), DISK_WEIGHT), weightOf(vcpus, { perVcpu: 100, least: 1, most: 1_000 }))
}

/** The kernel counts the sockets of processes in this very cgroup, not of those beneath it. So the runtime's own exists before it. */
function limitSockets(dir: string, memoryBytes: number): void {
  mkdirSync(dir, { recursive: true })
  writeValue(join(dir, SOCKET_MEMORY), Math.floor(memoryBytes * SOCKET_MEMORY_SHARE))
}

/**
 * Limits the memory of the parent. The kernel refuses a limit below what is in use and can't be reclaimed. Running sandboxes
 * of an earlier worker may use more, and then the earlier limit stays. Returns the refusal as a list of at most one text.
 */
function limitMemory(dir: string, bytes: number): readonly string[] {
  try {
    writeValue(join(dir, 'memory.limit_in_bytes'), bytes)
    return []
  } catch (error) {
    if (!hasErrorCode(error, 'EBUSY')) throw error
    return [`a memory limit of ${String(bytes)} bytes for all sandboxes, because they use more now`]
  }
}
