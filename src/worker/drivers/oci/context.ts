import type { Duplex } from 'node:stream'
import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { Random } from '../../../lib/random.ts'
import type { ImageResolver } from '../shared/desired-run.ts'
import type { HostCommands } from '../../processes/system-calls.ts'
import type { LogWriter, SandboxLogs } from '../../logs/logs.ts'
import type { SandboxNetworks } from '../../network/sandbox-network.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import type { RunUsage } from './run/run-activity.ts'
import type { OutputCaptures } from './run/output-captures.ts'
import type { Cgroups } from './run/cgroup.ts'
import type { Container } from './container.ts'
import type { SandboxDisks } from './disk/sandbox-disks.ts'
import type { Launcher } from './run/launcher.ts'
import type { HardLimits } from './run/rlimits.ts'
import type { LivenessCheck } from '../../processes/process-identity.ts'
import type { OciRunRecords } from './run/run-records.ts'
import type { Runtime } from './run/runtime.ts'

/** The driver's settings. */
export type OciSettings = {
  /** The size of a sandbox's disk if its spec names no size. The disk is a sparse file. */
  readonly defaultDiskMib: number
  /** How many disks of that size to keep formatted and mounted, ready for starts. */
  readonly diskPool: number
  /** The most processes and threads in a sandbox. */
  readonly pidsLimit: number
  /** The host user who is user 0 of every sandbox. Images are unpacked with owners shifted by this number. */
  readonly uidShift: number
  /** How many virtual CPUs each real CPU counts as. */
  readonly cpuOvercommit: number
  /** The path of a static init program on the host. */
  readonly initBinary: string
}

/** The default settings. */
export const DEFAULT_OCI_SETTINGS: Omit<OciSettings, 'uidShift'> = {
  defaultDiskMib: 8192,
  diskPool: 4,
  pidsLimit: 2048,
  cpuOvercommit: 4,
  initBinary: '/usr/bin/catatonit',
}

/** The dependencies and settings of the driver for OCI runtimes. */
export type OciDriverInput = {
  /** The driver's own folder. Nothing else writes there. */
  readonly dir: string
  readonly runtime: Runtime
  readonly launcher: Launcher
  readonly commands: HostCommands
  readonly images: ImageResolver
  readonly networks: SandboxNetworks
  readonly clock: Clock
  readonly log: Log
  readonly random: Random
  /** Opens the volumes that a run mounts or copies from. */
  readonly volumes: Pick<VolumeStorage, 'open'>
  /** Stores the workload's output and the log lines about a sandbox's starts and ends. */
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  /**
   * Opens a channel that serves the agent protocol to one client. It reports when the client uses the sandbox, and logs the
   * output of the client's processes.
   */
  readonly openGuestChannel: (container: Container, use: RunUsage, capture: Pick<LogWriter, 'stream'>) => Duplex
  readonly settings: OciSettings
}

/** The driver's input and the resources that the driver opened. */
export type OciContext = OciDriverInput & {
  readonly records: OciRunRecords
  readonly captures: OutputCaptures
  readonly disks: SandboxDisks
  readonly cgroups: Cgroups
  /** The folder in which root file systems are mounted. Every user of the host may enter its parent folders. */
  readonly mountDir: string
  readonly bootId: string
  readonly isAlive: LivenessCheck
  /**
   * The folder of programs that is mounted into each sandbox. Null if the machine lacks a program that the toolbox is made
   * from.
   */
  readonly toolbox: string | null
  readonly hardLimits: HardLimits
}
