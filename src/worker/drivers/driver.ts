import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { SnapshotTask, TakenSnapshot } from '../../contract/snapshots/snapshot-protocol.ts'
import type { RunId, SandboxId, SnapshotId } from '../../domain/ids.ts'
import type { EgressSecrets } from '../../domain/network/interception.ts'
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { WorkerVolumes } from '../volumes/volume-storage.ts'
import type {
  Capacity,
  DesiredVolume,
  DriverReport,
  ObservedRun,
  DesiredRun,
  RunOutcome,
} from '../../contract/workers/worker-protocol.ts'

/**
 * Runs sandboxes for a worker. A driver stores the state of each run on the machine, never only in memory, and `list`
 * reads that stored state. A worker that was killed and restarted therefore adopts its runs. Every method may be
 * repeated.
 */
export interface Driver {
  readonly name: string
  /**
   * Reports the driver's abilities and the machine's capacity. Rejects when the driver can't work on this machine. The
   * error message lists what is missing.
   */
  probe(): Promise<Probe>
  /** Lists every recorded run. An ended run stays in the list until `remove`. */
  list(): Promise<readonly ObservedRun[]>
  /** Lists the sandboxes whose writable layer this driver stores. */
  listStored(): Promise<readonly SandboxId[]>
  /**
   * Starts a run and resolves when its sandbox accepts commands. If the run is already starting, a second call waits
   * for the same start; if it has started, the call resolves at once. When a start fails, the driver cleans up, leaves
   * only the record of the ended run, and rejects with `StartError`.
   */
  start(run: DesiredRun, signal: AbortSignal): Promise<void>
  /**
   * Sends SIGTERM, then SIGKILL after `graceMs`, and resolves when the run has ended with `outcome`; absent: `stopped`.
   * Succeeds for an ended or unknown run.
   */
  stop(run: RunId, graceMs: number, outcome?: RunOutcome): Promise<void>
  /**
   * Replaces the secrets of a running sandbox, for its new connections. Does nothing to a run that is starting, has ended
   * or is unknown. A driver with the ability `secrets` has this method. After a restart of the worker, the method gives
   * the secrets again, because they are never on the worker's disk.
   */
  readonly setSecrets?: (run: RunId, given: EgressSecrets) => Promise<void>
  /**
   * Stops a run without grace and deletes its record. The sandbox's writable layer stays. Succeeds for an unknown run.
   */
  remove(run: RunId): Promise<void>
  /**
   * Deletes a sandbox's writable layer. Rejects while a run of the sandbox is recorded. Succeeds for an unknown
   * sandbox.
   */
  discard(sandbox: SandboxId): Promise<void>
  /** Snapshots of writable layers. Absent: the driver makes none. */
  readonly snapshots?: {
    /** Rejects with `SnapshotFailure`. */
    take(task: Extract<SnapshotTask, { readonly do: 'take' }>): Promise<TakenSnapshot>
    discard(snapshot: SnapshotId): Promise<void>
    /** Yields an archive of an OCI image layout with the files of a snapshot. Absent: the driver can't. */
    readonly files?: (snapshot: SnapshotId, signal: AbortSignal) => AsyncIterable<Buffer>
  }
  /** Measures what the writable layers of the running sandboxes take of the machine's disk. */
  measureDisks(): Promise<readonly RunDisk[]>
  /** Opens a stream that carries the agent protocol for one client. Rejects when the run is not running. */
  openChannel(run: RunId): Promise<Duplex>
  /**
   * Opens a connection to a loopback address of a running sandbox, as a socket of this process: the shortest way for a program on the
   * same machine. Resolves with null where only a channel can connect. Rejects with the reason. Absent: the driver has no such
   * sockets.
   */
  readonly connect?: ConnectNear
  /** Calls `onChange` within a second after the result of `list` changes. The returned function ends the calls. */
  watch(onChange: () => void): () => void
  /** The pools from which runs get resources. Absent: the driver has none. */
  readonly pools?: () => readonly ResourcePool[]
  /** How many starts used a warm sandbox. Absent: the driver keeps none. */
  readonly warmStarts?: () => WarmStarts
  /** The volumes that the driver itself stores and mounts. Absent: it mounts those of this machine, or none. */
  readonly volumes?: DriverVolumes
  /** Closes the driver in this process. Runs keep running. */
  close(): Promise<void>
}

/** Volumes in the hands of a driver, whose files this machine may not have. */
export type DriverVolumes = WorkerVolumes & {
  /** Opens the files of a volume, and creates the volume if it is missing. */
  readonly openFiles: (volume: DesiredVolume) => Promise<VolumeFiles>
}

export type ConnectNear = (
  run: RunId,
  target: { readonly host: string; readonly port: number },
  signal: AbortSignal,
) => Promise<NearConnection | null>

/** A connection to a sandbox. `touch` notes that it is used. Whoever has the socket calls it while bytes pass. */
export type NearConnection = { readonly socket: Socket; touch(): void }

/** What the writable layer of a running sandbox takes of the machine's disk. */
export type RunDisk = { readonly run_id: RunId; readonly takenBytes: number }

/** Resources of one kind. `ready`: prepared for the next starts. `free`: how many runs may still get one, or null. */
export type ResourcePool = {
  readonly name: 'disks' | 'user_namespaces' | 'networks' | 'warm_sandboxes'
  readonly ready: number
  readonly free: number | null
}

/**
 * The starts since the driver was opened. `hit`: took a warm sandbox. `miss`: could have, but none was ready for it. `unsuited`: no
 * warm sandbox can serve it.
 */
export type WarmStarts = Readonly<Record<'hit' | 'miss' | 'unsuited', number>>

/** The driver's abilities on this machine, and the machine's capacity. */
export type Probe = { readonly report: DriverReport; readonly capacity: Capacity }
