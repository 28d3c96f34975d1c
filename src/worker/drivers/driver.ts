import type { Duplex } from 'node:stream'
import type { RunId, SandboxId } from '../../domain/ids.ts'
import type { Capacity, DriverReport, ObservedRun, DesiredRun } from '../../contract/workers/worker-protocol.ts'

/**
 * How a worker runs sandboxes. The state of a run lies on the machine and never in memory alone: `list` reads it there,
 * so a worker that was killed and restarted adopts what runs. Every method may be repeated.
 */
export interface Driver {
  readonly name: string
  /** What this machine can run now. Rejects when the driver can't work here; the message says what is missing. */
  probe(): Promise<Probe>
  /** Every run on record, including ended ones until `remove`. */
  list(): Promise<readonly ObservedRun[]>
  /** Sandboxes whose writable layer this driver keeps. */
  listStored(): Promise<readonly SandboxId[]>
  /**
   * Starts a run and resolves when its sandbox accepts commands. A second start of the same run joins the first or
   * resolves at once. Rejects with `StartError`; by then only the run's record as ended is left.
   */
  start(run: DesiredRun, signal: AbortSignal): Promise<void>
  /** Sends SIGTERM, then SIGKILL after `graceMs`, and resolves when the run has ended. An ended or unknown run succeeds. */
  stop(run: RunId, graceMs: number): Promise<void>
  /** Stops a run without grace and deletes its record. The sandbox's writable layer stays. An unknown run succeeds. */
  remove(run: RunId): Promise<void>
  /** Deletes a sandbox's writable layer. Rejects while a run of it is on record. An unknown sandbox succeeds. */
  discard(sandbox: SandboxId): Promise<void>
  /** Opens a stream of raw agent protocol for one client. Rejects when the run is not running. */
  openChannel(run: RunId): Promise<Duplex>
  /** Calls `onChange` within a second of each change of what `list` returns, until the returned function is called. */
  watch(onChange: () => void): () => void
  /** Frees what the driver holds in this process. Runs go on. */
  close(): Promise<void>
}

/** What a driver can do on this machine, and how much of it. */
export type Probe = { readonly report: DriverReport; readonly capacity: Capacity }
