import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { deviceName } from '../../../processes/mountinfo.ts'
import type { Cgroups } from './cgroups.ts'
import { createDelegated } from './delegated-cgroup.ts'
import { foldersIn, pidsBelow, readCounter, removeTree, writeIfPresent, writeValue } from './cgroup-files.ts'
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

const CONTROLLERS = ['memory', 'cpu', 'pids'] as const

/** Opens cgroups of version 2. Implements `openCgroups`. */
export async function openV2(parent: string, limits: ParentLimits, mountPoint: string): Promise<Cgroups> {
  const base = join(mountPoint, parent)
  await mkdir(base, { recursive: true })
  const hasIo = readFileSync(join(mountPoint, 'cgroup.controllers'), 'utf8').split(/\s+/).includes('io')
  const controllers = hasIo ? [...CONTROLLERS, 'io'] : CONTROLLERS
  for (const folder of pathsDownTo(mountPoint, parent)) {
    for (const controller of controllers) writeValue(join(folder, 'cgroup.subtree_control'), `+${controller}`)
  }
  writeValue(join(base, 'memory.max'), limits.memoryBytes)
  writeValue(join(base, 'pids.max'), limits.pids)
  const hasDiskThrottle = existsSync(join(base, 'io.max'))
  const hasDiskWeight = existsSync(join(base, 'io.weight')) || existsSync(join(base, 'io.bfq.weight'))
  return {
    version: 2,
    initFlaw: null,
    hasDiskThrottle,
    lacks: [
      ...(hasDiskWeight ? [] : ['disk weights (io.weight)']),
      ...(hasDiskThrottle ? [] : ['limits of disk rates (io.max)']),
    ],
    create(name, runLimits) {
      const dir = join(base, name)
      mkdirSync(dir, { recursive: true })
      setLimits(dir, runLimits)
    },
    createForCommands(name, commandLimits) {
      const dir = join(base, commandsCgroupOf(name))
      mkdirSync(dir, { recursive: true })
      setLimits(dir, commandLimits)
      return [join(dir, 'cgroup.procs')]
    },
    async createForInit(name, owner) {
      await createDelegated(join(base, name, RUNTIME_CGROUP), owner)
      return [] // the runtime puts the container into this cgroup
    },
    throttleDisk(name, device, { bytesPerSec, iops }) {
      const bytes = String(bytesPerSec ?? 'max')
      const operations = String(iops ?? 'max')
      const rates = `rbps=${bytes} wbps=${bytes} riops=${operations} wiops=${operations}`
      writeValue(join(base, name, 'io.max'), `${deviceName(device)} ${rates}`)
      return Promise.resolve()
    },
    pids: (name) => pidsBelow(join(base, name)),
    commandPids: (name) => pidsBelow(join(base, commandsCgroupOf(name))),
    memoryKills: (name) => readCounter(join(base, name, 'memory.events'), 'oom_kill'),
    hasReachedMemoryLimit: (name) => Promise.resolve((readCounter(join(base, name, 'memory.events'), 'max') ?? 0) > 0),
    async remove(name) {
      await removeTree(join(base, name))
      await removeTree(join(base, commandsCgroupOf(name)))
    },
    list: async () => runsOfCgroups(await foldersIn(base)),
    close: () => removeTree(base),
    runtimePath: (name) => join('/', parent, name, RUNTIME_CGROUP),
  }
}

function setLimits(dir: string, { memoryBytes, vcpus, pids }: CgroupLimits): void {
  writeValue(join(dir, 'memory.max'), memoryBytes)
  writeIfPresent(join(dir, 'memory.swap.max'), 0)
  writeValue(join(dir, 'cpu.max'), `${String(quotaUs(vcpus))} ${String(CPU_PERIOD_US)}`)
  writeValue(join(dir, 'cpu.weight'), weightOf(vcpus, { perVcpu: 100, least: 1, most: 10_000 }))
  writeValue(join(dir, 'pids.max'), pids)
  writeIfPresent(join(dir, 'io.weight'), weightOf(vcpus, { perVcpu: 100, least: 1, most: 10_000 }))
  writeIfPresent(join(dir, 'io.bfq.weight'), weightOf(vcpus, { perVcpu: 100, least: 1, most: 1_000 }))
}

function pathsDownTo(mountPoint: string, parent: string): readonly string[] {
  const parts = parent.split('/').filter((part) => part !== '')
  return parts.reduce<readonly string[]>(
    (paths, _, index) => [...paths, join(mountPoint, ...parts.slice(0, index + 1))],
    [mountPoint],
  )
}
