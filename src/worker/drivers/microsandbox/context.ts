import type { Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { SandboxLogs } from '../../logs/logs.ts'
import type { VolumeStorage } from '../../volumes/volume-storage.ts'
import type { ImageResolver } from '../shared/desired-run.ts'
import type { MicrosandboxInstallation } from './installation.ts'
import type { StoredSandboxes } from './stored-sandboxes.ts'
import type { MsbCli } from './msb-cli.ts'
import type { OutputCaptures } from './output-captures.ts'
import type { VmImages } from './vm-images.ts'
import type { VmRunRecords } from './vm-records.ts'

/** What an operator may set. */
export type MicrosandboxSettings = {
  /** Size of a sandbox's disk when its spec names none; sparse. */
  readonly defaultDiskMib: number
  /** What the stores of images and volumes add to owners. */
  readonly uidShift: number
  /** How many virtual CPUs may be promised per real one. */
  readonly cpuOvercommit: number
}

/** What `makeMicrosandboxDriver` is given. */
export type MicrosandboxDriverInput = {
  /** The driver's own folder; nobody else writes there. The runtime's home lies in it. */
  readonly dir: string
  readonly installation: MicrosandboxInstallation
  readonly images: ImageResolver
  /** Digests of every image of the store that a reference names. */
  readonly imageDigests: () => Promise<readonly string[]>
  /** Where the volumes that a run mounts or copies from are opened. */
  readonly volumes: Pick<VolumeStorage, 'open'>
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
  readonly settings: MicrosandboxSettings
}

/** The same, with what the driver opened. */
export type VmContext = MicrosandboxDriverInput & {
  /** The runtime's home: its database, its images, a folder for each sandbox. */
  readonly home: string
  readonly msb: MsbCli
  readonly vmImages: VmImages
  readonly records: VmRunRecords
  readonly storedSandboxes: StoredSandboxes
  readonly captures: OutputCaptures
  readonly bootId: string
}
