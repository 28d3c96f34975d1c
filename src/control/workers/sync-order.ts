import type { WorkerId } from '../../domain/ids.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import { isLaterReport, type ReportPosition } from '../../domain/workers/lease.ts'

/**
 * Serves the syncs of workers. The answers to a worker are made in the order of its reports, and name this order as
 * `answered_by`. The answers of another order may be made earlier or later.
 */
export type SyncOrder = {
  /**
   * Runs `serve` for a report. When a later report of the same worker arrives, the signal of the earlier `serve`
   * aborts, and the later `serve` starts once the earlier one has answered. A report that arrives after a later one
   * gets a signal that is already aborted.
   */
  run<T>(
    report: ReportPosition & { readonly worker_id: WorkerId },
    signal: AbortSignal,
    serve: (signal: AbortSignal) => Promise<T>,
  ): Promise<T & { readonly answered_by: string }>
  /** Releases all held syncs, which are then answered at once. */
  releaseAll(reason: Error): void
}

type HeldSync = { readonly report: ReportPosition; readonly release: AbortController; readonly answered: Promise<void> }

/** Makes the order of the syncs in one server process. `answered_by` is a name that no other process has. */
export function makeSyncOrder(answered_by: string): SyncOrder {
  const held = new Map<WorkerId, HeldSync>()
  return {
    async run(report, signal, serve) {
      const { worker_id } = report
      const { promise: answered, resolve } = Promise.withResolvers<void>()
      const mine: HeldSync = { report, release: new AbortController(), answered }
      const earlier = held.get(worker_id)
      if (earlier !== undefined && isLaterReport(earlier.report, report)) mine.release.abort(new Error('overtaken'))
      else held.set(worker_id, mine)
      try {
        if (held.get(worker_id) === mine && earlier !== undefined) {
          earlier.release.abort(new Error('a later sync arrived'))
          await earlier.answered
        }
        using either = joinSignals(signal, mine.release.signal)
        return { ...(await serve(either.signal)), answered_by }
      } finally {
        resolve()
        if (held.get(worker_id) === mine) held.delete(worker_id)
      }
    },
    releaseAll(reason) {
      for (const { release } of held.values()) release.abort(reason)
    },
  }
}
