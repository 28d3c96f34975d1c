import type { ObservedRun, SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../domain/ids.ts'

/** Which runs' start phases the control plane has recorded. Each worker process reports the phases of a run once. */
export type StartReports = {
  /** Removes the phases that are recorded. */
  withoutRecorded(runs: readonly ObservedRun[]): readonly ObservedRun[]
  /** Remembers the phases of a report that was answered. */
  noteRecorded(report: Pick<SyncRequest, 'observed_runs'>): void
}

/** Begins without recorded phases. */
export function makeStartReports(): StartReports {
  const recorded = new Set<RunId>()
  return {
    withoutRecorded(runs) {
      const held = new Set(runs.map(({ run_id }) => run_id))
      for (const run of recorded) if (!held.has(run)) recorded.delete(run)
      return runs.map((run) => (recorded.has(run.run_id) ? withoutPhases(run) : run))
    },
    noteRecorded({ observed_runs }) {
      for (const { run_id, start_phases } of observed_runs) if (start_phases !== undefined) recorded.add(run_id)
    },
  }
}

/** A run without its start phases. They are no news by themselves, so reports are compared without them. */
export function withoutPhases(run: ObservedRun): ObservedRun {
  if (run.start_phases === undefined) return run
  const { start_phases: _phases, start_age_ms: _age, ...rest } = run
  return rest
}
