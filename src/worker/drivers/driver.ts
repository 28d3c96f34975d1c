import type { Duplex } from 'node:stream'
import type { RunId, SandboxId } from '../../domain/ids.ts'
import type { Capacity, DriverReport, ObservedRun, DesiredRun } from '../../contract/workers/worker-protocol.ts'

/**
 * Runs sandboxes for a worker. A driver stores the state of each run on the machine, never only in memory, and `list` reads it
 * from there. A worker that was killed and restarted therefore adopts its runs. Every method may be repeated.
 */
export interface Driver {
  readonly name: string
  /**
   * Reports the driver's abilities and the machine's capacity. Rejects when the driver can't work on this machine, with a
   * message that lists what is missing.
   */
  probe(): Promise<Probe>
  /** Lists every recorded run. An ended run stays in the list until `remove`. */
  list(): Promise<readonly ObservedRun[]>
  /** Lists the sandboxes whose writable layer this driver stores. */
  listStored(): Promise<readonly SandboxId[]>
  /**
   * Starts a run and resolves when its sandbox accepts commands. A second start of the same run joins the first or resolves at
   * once. Rejects with `StartError` after the clean-up; only the record of the ended run is left.
   */
  start(run: DesiredRun, signal: AbortSignal): Promise<void>
  /** Sends SIGTERM, then SIGKILL after `graceMs`, and resolves when the run has ended. An ended or unknown run succeeds. */
  stop(run: RunId, graceMs: number): Promise<void>
  /** Stops a run without grace and deletes its record. The sandbox's writable layer stays. An unknown run succeeds. */
  remove(run: RunId): Promise<void>
  /** Deletes a sandbox's writable layer. Rejects while a run of the sandbox is recorded. An unknown sandbox succeeds. */
  discard(sandbox: SandboxId): Promise<void>
  /** Opens a stream that carries the agent protocol for one client. Rejects when the run is not running. */
  openChannel(run: RunId): Promise<Duplex>
  /** Calls `onChange` within a second of each change of what `list` returns, until the returned function is called. */
  watch(onChange: () => void): () => void
  /** Closes the driver in this process. Runs keep running. */
  close(): Promise<void>
}

/** The driver's abilities on this machine, and the machine's capacity. */
export type Probe = { readonly report: DriverReport; readonly capacity: Capacity }
