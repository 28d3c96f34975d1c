import type { DesiredRun, ObservedRun, RunOutcome } from '../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, SnapshotId } from '../../domain/ids.ts'

/**
 * The simulated machine. Several drivers, one after the other, may use the same machine: its runs outlive a driver, as
 * sandboxes outlive a worker process.
 */
export type SimulatedWorld = {
  readonly runs: Map<RunId, SimulatedRun>
  readonly stored: Set<SandboxId>
  readonly snapshots: Set<SnapshotId>
  /** Called with each run that changes. */
  readonly onChange: Set<(run: RunId) => void>
  /** Ends a run now, as a crash would. Does nothing to a run that has ended or is unknown. */
  end(run: RunId, outcome: RunOutcome): void
}

export type SimulatedRun = {
  readonly desired: DesiredRun
  /** Null while the run starts. */
  readonly startedAtMs: number | null
  readonly observed: ObservedRun
}

/** Creates a machine without runs. */
export function makeSimulatedWorld(): SimulatedWorld {
  const runs = new Map<RunId, SimulatedRun>()
  const onChange = new Set<(run: RunId) => void>()
  return {
    runs,
    stored: new Set(),
    snapshots: new Set(),
    onChange,
    end(id, outcome) {
      const run = runs.get(id)
      if (run === undefined || run.observed.phase === 'ended') return
      runs.set(id, { ...run, observed: { ...run.observed, phase: 'ended', outcome } })
      for (const call of onChange) call(id)
    },
  }
}
