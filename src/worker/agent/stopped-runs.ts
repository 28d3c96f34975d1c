import type { DesiredRun } from '../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../domain/ids.ts'

/**
 * The runs that an answer stopped or no longer desired. Two replicas may answer two reports at the same time, and the
 * answer to the later report may show what was read earlier. Such an answer must not start a stopped run again.
 */
export type StoppedRuns = {
  /**
   * Returns the desired runs of the answer to the report `answeredSeq`. Those that were stopped after this report was
   * sent stay stopped. `desiredBefore` are the runs of the answer before it, `sentSeq` is the number of the last report.
   */
  keepStopped(
    desiredRuns: readonly DesiredRun[],
    at: { readonly desiredBefore: readonly DesiredRun[]; readonly answeredSeq: number; readonly sentSeq: number },
  ): readonly DesiredRun[]
  /** Notes that a run is removed, because the last answer doesn't desire it. */
  noteRemoved(run: RunId, sentSeq: number): void
}

/** Begins without stopped runs. A run is forgotten once a report that was sent after its stop is answered. */
export function makeStoppedRuns(): StoppedRuns {
  const sentSeqs = new Map<RunId, number>()
  return {
    keepStopped(desiredRuns, { desiredBefore, answeredSeq, sentSeq }) {
      for (const [run, seq] of sentSeqs) if (answeredSeq > seq) sentSeqs.delete(run)
      const kept = desiredRuns.map((run): DesiredRun =>
        sentSeqs.has(run.run_id) ? { ...run, desired_status: 'stopped' } : run,
      )
      const running = new Set(kept.filter((run) => run.desired_status === 'running').map(({ run_id }) => run_id))
      for (const { run_id } of [...desiredBefore, ...kept]) if (!running.has(run_id)) sentSeqs.set(run_id, sentSeq)
      return kept
    },
    noteRemoved(run, sentSeq) {
      sentSeqs.set(run, sentSeq)
    },
  }
}
