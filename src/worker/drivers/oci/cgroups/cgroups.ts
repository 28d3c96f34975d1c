import type { CgroupLimits, DiskThrottle } from './sandbox-limits.ts'

/**
 * The cgroups that limit runs. The driver creates one for each run, as the parent of the runtime's own cgroup. The runtime
 * removes its cgroup when the container ends; the driver's cgroup keeps the counters that show whether memory ran out. All of
 * them have one parent, whose limits keep a part of the machine for the host. Works on cgroup v2 and on v1 hierarchies.
 */
export type Cgroups = {
  readonly version: 1 | 2
  /** Each limit that this kernel can't enforce, with the file that it lacks. */
  readonly lacks: readonly string[]
  /** Whether the kernel can limit the transfer rates of a disk. */
  readonly hasDiskThrottle: boolean
  /** Creates a run's cgroup with its limits. May be repeated, and then sets other limits. */
  create(name: string, limits: CgroupLimits): void
  /**
   * Creates the second cgroup of a run, for the host's processes that serve the run's commands. It isn't beneath the
   * first, so processes in the sandbox can't take what these need. Returns the paths of its `cgroup.procs` files, one for each
   * hierarchy. May be repeated.
   */
  createForCommands(name: string, limits: CgroupLimits): readonly string[]
  /** Why no sandbox's init can manage cgroups of its own on this machine. Null if it can. */
  readonly initFlaw: string | null
  /**
   * Creates the cgroup that the init of a run manages, and gives it to the host user `owner`. All limits are on cgroups that the
   * init doesn't see. Returns the `cgroup.procs` files of cgroups that the runtime must be started in. Requires no `initFlaw`.
   */
  createForInit(name: string, owner: number): Promise<readonly string[]>
  /** Limits how fast a run reads and writes the disk with this device number. Requires `hasDiskThrottle`. */
  throttleDisk(name: string, device: number, throttle: DiskThrottle): Promise<void>
  /** Lists the host's ids of all processes in a run's cgroup and beneath it. Empty if the cgroup doesn't exist. */
  pids(name: string): Promise<readonly number[]>
  /** Lists the host's ids of the processes that serve a run's commands. */
  commandPids(name: string): Promise<readonly number[]>
  /**
   * How many processes of a run the kernel killed because memory ran out. Null if no counter exists: with cgroup v1, the
   * runtime's own cgroup has it, which ends with the container.
   */
  memoryKills(name: string): number | null
  /** Whether a run's memory ever reached its limit. The kernel may have freed memory of files then, without a kill. */
  hasReachedMemoryLimit(name: string): Promise<boolean>
  /** Removes both cgroups of a run. Rejects with EBUSY while a process is left in them. Succeeds for an unknown run. */
  remove(name: string): Promise<void>
  /** Lists the names of all runs that have a cgroup. */
  list(): Promise<readonly string[]>
  /** Removes the parent cgroup, which must be empty. */
  close(): Promise<void>
  /** Returns the `cgroupsPath` of a run's OCI configuration: the path of the runtime's own cgroup. */
  runtimePath(name: string): string
}
