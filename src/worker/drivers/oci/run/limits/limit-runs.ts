import { existsSync, statSync } from 'node:fs'
import type { Log } from '../../../../../lib/log.ts'
import type { RunId } from '../../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../../domain/spec/spec.ts'
import { memoryForSandboxes } from '../../../shared/machine.ts'
import type { OciContext, OciSettings } from '../../context.ts'
import { rootfsPaths } from '../../rootfs/root-mounts.ts'
import type { Cgroups } from '../../cgroups/cgroups.ts'
import { openCgroups } from '../../cgroups/open-cgroups.ts'
import { readKernelNumber } from '../../cgroups/cgroup-files.ts'
import { containerIdOf } from '../run-records.ts'
import type { RuntimeName } from '../runtime/runtime.ts'
import {
  limitsOf,
  limitsOfCommands,
  openFilesOfAllSandboxes,
  pidsOfAllSandboxes,
  type DiskThrottle,
  type ParentLimits,
} from '../../cgroups/sandbox-limits.ts'

type LimitSettings = Pick<OciSettings, 'hostReserveMib' | 'allPidsLimit' | 'diskThrottle'>

/** Returns the limits of all sandboxes together. Throws if the settings leave no memory for sandboxes. */
export function parentLimitsOf({
  hostReserveMib,
  allPidsLimit,
}: Pick<LimitSettings, 'hostReserveMib' | 'allPidsLimit'>): ParentLimits {
  const kernel = { pidMax: readKernelNumber('kernel/pid_max'), threadsMax: readKernelNumber('kernel/threads-max') }
  return {
    memoryBytes: memoryForSandboxes(hostReserveMib) * 1024 * 1024,
    pids: allPidsLimit ?? pidsOfAllSandboxes(kernel),
  }
}

/**
 * Describes each limit on sandboxes that this machine can't enforce. The kernel counts open files for all users together
 * (`fs.file-max`), and a sandbox may have as many as fit into its memory. systemd raises the count to no limit for this reason.
 */
export function limitsLacking(
  cgroups: Pick<Cgroups, 'lacks'>,
  parent: Pick<ParentLimits, 'memoryBytes'>,
  fileMax = readKernelNumber('fs/file-max'),
): readonly string[] {
  const most = openFilesOfAllSandboxes(parent)
  if (fileMax >= most) return cgroups.lacks
  const files = `room for all open files (fs.file-max is ${String(fileMax)}, and sandboxes could have ${String(most)})`
  return [...cgroups.lacks, files]
}

/** Opens and limits the parent cgroup of all runs. Rejects if a setting asks for a limit that the kernel lacks. */
export async function openLimitedCgroups(
  parent: string,
  settings: LimitSettings,
  log: Log,
): Promise<{ readonly cgroups: Cgroups; readonly parentLimits: ParentLimits }> {
  const parentLimits = parentLimitsOf(settings)
  const cgroups = await openCgroups(parent, parentLimits)
  for (const limit of limitsLacking(cgroups, parentLimits))
    log.info({ limit }, 'this machine can not enforce a limit on sandboxes')
  const { bytesPerSec, iops } = settings.diskThrottle
  if (isThrottled(settings.diskThrottle) && !cgroups.hasDiskThrottle) {
    const name = bytesPerSec === null ? 'SANDYARD_DISK_IOPS' : 'SANDYARD_DISK_MIB_PER_SEC'
    const value = bytesPerSec === null ? iops : bytesPerSec / 1024 / 1024
    if ((await cgroups.list()).length === 0) await cgroups.close()
    throw new Error(
      `${name} is ${String(value)}; accepted: no value, because this kernel can't limit the rates of disks`,
    )
  }
  return { cgroups, parentLimits }
}

type LimitedRun = { readonly run_id: RunId; readonly spec: SandboxSpec; readonly container_id?: RunId }

/** Creates a run's cgroup with the limits that its spec and the settings name. May be repeated. */
export function limitRun({ cgroups, settings, parentLimits }: OciContext, run: LimitedRun): void {
  const policy = { most: settings.pidsLimit, perGib: settings.pidsPerGib, parent: parentLimits }
  cgroups.create(containerIdOf(run), limitsOf(run.spec.resources, policy))
}

/** Limits the rates of a container's disk, which must be mounted. Does nothing if the settings name no rates. */
export async function limitDiskOf({ cgroups, settings, mountDir }: OciContext, container: RunId): Promise<void> {
  if (!isThrottled(settings.diskThrottle)) return
  const { dev } = statSync(rootfsPaths(mountDir, container).disk)
  await cgroups.throttleDisk(container, dev, settings.diskThrottle)
}

/**
 * Creates the cgroup for the processes that serve a run's commands, and returns the files by which they join it. Sandboxes
 * without commands don't pay for it.
 */
export function limitCommandsOf(
  {
    cgroups,
    settings,
  }: {
    readonly cgroups: Pick<Cgroups, 'createForCommands'>
    readonly settings: Pick<OciSettings, 'sessionsPerSandbox'>
  },
  run: LimitedRun,
  runtime: RuntimeName,
): readonly string[] {
  const language = runtime === 'crun' ? 'native' : 'go'
  const limits = limitsOfCommands(run.spec.resources, { sessions: settings.sessionsPerSandbox, language })
  return cgroups.createForCommands(containerIdOf(run), limits)
}

/**
 * Gives the runs of an earlier worker the limits of this one: its version or its settings may differ. Call this function
 * before the runs are adopted: a cgroup that was removed meanwhile would be created again.
 */
export async function limitAdoptedRuns(context: OciContext): Promise<void> {
  const existing = new Set(await context.cgroups.list())
  for (const record of context.records.list()) {
    const container = containerIdOf(record)
    if (record.is_released || !existing.has(container)) continue
    limitRun(context, record)
    if (existsSync(rootfsPaths(context.mountDir, container).disk)) await limitDiskOf(context, container)
  }
}

function isThrottled({ bytesPerSec, iops }: DiskThrottle): boolean {
  return bytesPerSec !== null || iops !== null
}
