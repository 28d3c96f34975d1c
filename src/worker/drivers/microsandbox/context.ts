import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { Random } from '../../../lib/random.ts'
import type { SandboxNetworks } from '../../network/sandbox-network.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import type { SandboxMetrics } from '../../metrics/sandbox-metrics.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import type { ImageResolver } from '../shared/desired-run.ts'
import type { OfferedShare } from '../shared/machine.ts'
import type { MicrosandboxInstallation } from './installation.ts'
import type { StoredSandboxes } from './stored-sandboxes.ts'
import type { MsbCli } from './msb-cli.ts'
import type { OutputCaptures } from './output-captures.ts'
import type { VmImages } from './vm-images.ts'
import type { VmRunRecords } from './vm-records.ts'

/** The driver's settings. */
type MicrosandboxSettings = {
  /** The size of a sandbox's disk if its spec names no size. The disk is a sparse file. */
  readonly defaultDiskMib: number
  /** The largest disk that a sandbox may get. */
  readonly maxDiskMib: number
  /** The number that the worker's image store and volume storage add to the owner ids of files. */
  readonly uidShift: number
} & OfferedShare

/** The dependencies and settings of the driver for microVMs. */
export type MicrosandboxDriverInput = {
  /** The driver's own folder, which contains the runtime's home. Nothing else writes there. */
  readonly dir: string
  readonly installation: MicrosandboxInstallation
  readonly images: ImageResolver
  /** Lists the digests of the images in the worker's image store that have a reference. */
  readonly imageDigests: () => Promise<readonly string[]>
  /** Opens the volumes that a run mounts or copies from. */
  readonly volumes: Pick<VolumeStorage, 'open' | 'folderLimits'>
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly metrics: Pick<SandboxMetrics, 'begin' | 'end'>
  readonly networks: SandboxNetworks
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
  readonly settings: MicrosandboxSettings
}

/** The driver's input and the resources that the driver opened. */
export type VmContext = MicrosandboxDriverInput & {
  /** The runtime's home: its database, its images and a folder for each sandbox. */
  readonly home: string
  readonly msb: MsbCli
  readonly vmImages: VmImages
  readonly records: VmRunRecords
  readonly storedSandboxes: StoredSandboxes
  readonly captures: OutputCaptures
  readonly bootId: string
  /** What guests trust whose spec asks for no certificates. */
  readonly uselessCertificate: string
}
