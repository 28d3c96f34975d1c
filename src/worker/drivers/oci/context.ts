import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { IdRange } from '../../../domain/workers/id-range.ts'
import type { SnapshotId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { Random } from '../../../lib/random.ts'
import type { Image } from '../../images/image.ts'
import type { ImageResolver } from '../shared/desired-run.ts'
import { NO_DISK_RESERVE } from '../../disk-reserve.ts'
import type { OfferedShare } from '../shared/machine.ts'
import type { HostCommands } from '../../processes/system-calls.ts'
import type { LogWriter, SandboxLogs } from '../../logs/logs.ts'
import type { SandboxMetrics } from '../../metrics/sandbox-metrics.ts'
import type { SandboxNetworks } from '../../network/sandbox-network.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import type { TcpTarget } from '../../channel/guest.ts'
import type { RunUsage } from '../shared/run-activity.ts'
import type { OutputCaptures } from './run/output-captures.ts'
import type { Cgroups } from './cgroups/cgroups.ts'
import type { Container } from './container.ts'
import type { ForkServers } from './exec/fork-servers.ts'
import type { KeyedMutex } from '../../../lib/turns/keyed-mutex.ts'
import type { DiskSnapshots } from './disk/disk-snapshots.ts'
import type { SandboxDisks } from './disk/sandbox-disks.ts'
import type { Launcher } from './run/runtime/launcher.ts'
import type { HardLimits } from './users/rlimits.ts'
import type { LivenessCheck } from '../../processes/process-identity.ts'
import type { GrowthLimits } from './run/limits/growth-limits.ts'
import type { MemoryKills } from './run/limits/memory-kills.ts'
import type { OciRunRecords } from './run/run-records.ts'
import type { Runtime } from './run/runtime/runtime.ts'
import type { DiskThrottle, ParentLimits } from './cgroups/sandbox-limits.ts'
import type { MappedFolders } from './users/mapping-flaws.ts'
import type { SandboxUsers } from './users/sandbox-users.ts'

/** The driver's settings. */
export type OciSettings = {
  /** The size of a sandbox's disk if its spec names no size. The disk is a sparse file. */
  readonly defaultDiskMib: number
  /** The largest disk that a sandbox may get. */
  readonly maxDiskMib: number
  /** How many disks of the default size, and how many user namespaces, to keep ready for later starts. */
  readonly readyAhead: number
  /** How many warm sandboxes to keep at most. 0: none. */
  readonly warm: number
  /** The maximum number of processes and threads in a sandbox of any size. */
  readonly pidsLimit: number
  /** How many processes and threads a sandbox may have for each GiB of its memory, in addition to a base. */
  readonly pidsPerGib: number
  /** The maximum number of processes and threads of all sandboxes. Null: three quarters of what the kernel allows. */
  readonly allPidsLimit: number | null
  /** How many commands, connections and file helpers of a sandbox may be open at once. */
  readonly sessionsPerSandbox: number
  /** The maximum rates at which each sandbox reads and writes its disk. */
  readonly diskThrottle: DiskThrottle
  /** The id on disk of the sandboxes' user 0. Layers, disks and volumes store every id shifted by this number. */
  readonly uidShift: number
  /** The range of the host's ids from which each run gets its own. */
  readonly uidRange: IdRange
  /** The path of a static init program on the host. */
  readonly initBinary: string
} & OfferedShare

/** The default settings. */
export const DEFAULT_OCI_SETTINGS: Omit<OciSettings, 'uidShift' | 'uidRange'> = {
  defaultDiskMib: 8192,
  maxDiskMib: 65_536,
  diskOvercommit: 64,
  readyAhead: 4,
  warm: 0,
  pidsLimit: 32_768,
  pidsPerGib: 1024,
  allPidsLimit: null,
  sessionsPerSandbox: 256,
  diskThrottle: { bytesPerSec: null, iops: null },
  cpuOvercommit: 4,
  hostReserveMib: null,
  diskReserve: NO_DISK_RESERVE,
  initBinary: '/usr/bin/catatonit',
}

/** The dependencies and settings of the driver for OCI runtimes. */
export type OciDriverInput = {
  /** The driver's own folder. Nothing else writes there. */
  readonly dir: string
  /** The name of the driver's cgroup and of its mount folder on this machine. No other driver has the same key. */
  readonly key: string
  readonly runtime: Runtime
  readonly launcher: Launcher
  /** Prepared in warm sandboxes, so that their first command is fast. Absent: none are. */
  readonly forkServers?: Pick<ForkServers, 'prepare'>
  readonly commands: HostCommands
  readonly images: ImageResolver
  readonly networks: SandboxNetworks
  readonly clock: Clock
  readonly log: Log
  readonly random: Random
  /** The folders of images and volumes, whose mounts show files with the ids of each run. */
  readonly folders: MappedFolders
  /** Opens the volumes that a run mounts or copies from. */
  readonly volumes: Pick<VolumeStorage, 'open' | 'promisedBytes' | 'folderLimits'>
  /** Stores the workload's output and the log lines about a sandbox's starts and ends. */
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  /** Samples and keeps what the sandboxes use. */
  readonly metrics: Pick<SandboxMetrics, 'begin' | 'end'>
  /**
   * Opens a channel that serves the agent protocol to one client. The channel reports each use of the sandbox to `use`,
   * and copies the output of the client's processes to `capture`.
   */
  readonly openGuestChannel: (container: Container, use: RunUsage, capture: Pick<LogWriter, 'stream'>) => Duplex
  /** Connects to a loopback address of a container. See `connect` of `Driver`. */
  readonly connectGuest: (container: Container, target: TcpTarget, signal: AbortSignal) => Promise<Socket | null>
  /**
   * Gets the image with the files of a snapshot that another worker has. Rejects with `StartError`. Absent: there is no other worker.
   */
  readonly fetchSnapshot?: (snapshot: SnapshotId, signal: AbortSignal) => Promise<Image>
  readonly settings: OciSettings
}

/** The driver's input and the resources that the driver opened. */
export type OciContext = OciDriverInput & {
  readonly records: OciRunRecords
  readonly captures: OutputCaptures
  readonly disks: SandboxDisks
  /** Held while a sandbox's disk is mounted, unmounted or copied, by the sandbox. */
  readonly diskLocks: KeyedMutex
  readonly snapshots: DiskSnapshots
  readonly growth: GrowthLimits
  readonly memoryKills: MemoryKills
  readonly users: SandboxUsers
  readonly cgroups: Cgroups
  /** The limits of all sandboxes together. */
  readonly parentLimits: ParentLimits
  /** The folder in which root file systems are mounted. Every user of the host may enter its parent folders. */
  readonly mountDir: string
  /** The folder of the worker's pipes: see `mountPipeFolder`. */
  readonly pipeDir: string
  readonly bootId: string
  readonly isAlive: LivenessCheck
  /**
   * The folder of programs that is mounted into each sandbox. Null if the machine lacks a program that the toolbox is made
   * from.
   */
  readonly toolbox: string | null
  readonly hardLimits: HardLimits
  /** Why disk images can't be mounted, apart from missing programs. Null if they can. */
  readonly imageFlaw: string | null
}
