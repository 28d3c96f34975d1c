import type { Duplex } from 'node:stream'
import type { RunId, SandboxId } from '../../domain/ids.ts'
import type { Capacity, DriverReport, ObservedRun, DesiredRun } from '../../contract/workers/worker-protocol.ts'

/**
 * How a worker runs sandboxes. A driver keeps no truth in memory: `list` reads the system itself, so that a worker
 * that was killed and started again adopts what runs. Every method may be repeated.
 */
export interface Driver {
  readonly name: string
  /** What this machine can run now. Rejects when the driver can't work here, saying what is missing. */
  probe(): Promise<Probe>
  /** Every run this driver holds, the ended ones included until `remove`. */
  list(): Promise<readonly ObservedRun[]>
  /** Sandboxes whose writable layer this driver keeps. */
  listStored(): Promise<readonly SandboxId[]>
  /**
   * Starts a run and resolves when its sandbox accepts commands. A second start of the same run joins the first or
   * resolves at once. Rejects with `StartError`; then nothing of the run is left but its record as ended.
   */
  start(run: DesiredRun, signal: AbortSignal): Promise<void>
  /** SIGTERM, then SIGKILL after `graceMs`. Resolves when the run has ended; stopping an ended or unknown run succeeds. */
  stop(run: RunId, graceMs: number): Promise<void>
  /** Kills what is left of a run and forgets it; the sandbox's writable layer stays. An unknown run succeeds. */
  remove(run: RunId): Promise<void>
  /** Deletes a sandbox's writable layer. Refuses while a run of it is held; an unknown sandbox succeeds. */
  discard(sandbox: SandboxId): Promise<void>
  /** The raw bytes of the agent protocol for one client. Rejects when the run is not running. */
  openChannel(run: RunId): Promise<Duplex>
  /** Calls back whenever `list` would answer something new, within a second of it; the answer ends the watch. */
  watch(onChange: () => void): () => void
  /** Lets go of what the driver holds in this process. Runs go on. */
  close(): Promise<void>
}

export type Probe = { readonly report: DriverReport; readonly capacity: Capacity }
