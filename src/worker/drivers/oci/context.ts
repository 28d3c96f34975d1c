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

/** What an operator may set. */
export type OciSettings = {
  /** Size of a sandbox's disk when its spec names none; sparse. */
  readonly defaultDiskMib: number
  /** Disks of that size that are kept formatted ahead. */
  readonly diskPool: number
  /** The most processes and threads in a sandbox. */
  readonly pidsLimit: number
  /** The host user that is user 0 of every sandbox; images are unpacked with this shift. */
  readonly uidShift: number
  /** How many virtual CPUs may be promised per real one. */
  readonly cpuOvercommit: number
  /** The static init program of the host. */
  readonly initBinary: string
}

/** The settings of a driver nobody tuned. */
export const DEFAULT_OCI_SETTINGS: Omit<OciSettings, 'uidShift'> = {
  defaultDiskMib: 8192,
  diskPool: 4,
  pidsLimit: 2048,
  cpuOvercommit: 4,
  initBinary: '/usr/bin/catatonit',
}

/** What `makeOciDriver` is given. */
export type OciDriverInput = {
  /** The driver's own folder; nobody else writes there. */
  readonly dir: string
  readonly runtime: Runtime
  readonly launcher: Launcher
  readonly commands: HostCommands
  readonly images: ImageResolver
  readonly networks: SandboxNetworks
  readonly clock: Clock
  readonly log: Log
  readonly random: Random
  /** Where the volumes that a run mounts or copies from are opened. */
  readonly volumes: Pick<VolumeStorage, 'open'>
  /** Where the workload's output and what happens to a sandbox is written. */
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  /** Serves the agent protocol for one client, says when it uses the sandbox, and writes down what processes say. */
  readonly openGuestChannel: (container: Container, use: RunUsage, capture: Pick<LogWriter, 'stream'>) => Duplex
  readonly settings: OciSettings
}

/** The same, with what the driver opened. */
export type OciContext = OciDriverInput & {
  readonly records: OciRunRecords
  readonly captures: OutputCaptures
  readonly disks: SandboxDisks
  readonly cgroups: Cgroups
  /** Where root file systems are mounted; every folder above lets strangers pass. */
  readonly mountDir: string
  readonly bootId: string
  readonly isAlive: LivenessCheck
  /** The programs that are mounted into each sandbox; null when the machine lacks what they are made of. */
  readonly toolbox: string | null
  readonly hardLimits: HardLimits
}
