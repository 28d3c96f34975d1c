import type { WorkerId } from '../../domain/ids.ts'
import type { KnownRuns } from '../../store/sandboxes/runs.ts'

/** What this process sent to each worker last, so that its next answer has only what changed since then. */
export type SentRuns = {
  /** The runs of the answer with a `desired_version`. Null if that isn't one of the last that this process made for the worker. */
  of(worker: WorkerId, desiredVersion: string | null): KnownRuns | null
  note(worker: WorkerId, sent: Sent): void
}

type Sent = { readonly desired_version: string; readonly runs: KnownRuns }

/**
 * How many answers are remembered for each worker. A busy worker has two reports in flight (`SYNCS_AT_ONCE`). The answer to
 * the first then has a version that the second report doesn't know yet.
 */
const ANSWERS_MAX = 2
/** How many workers are remembered: some 200 bytes for each run. Beyond that, the one that was answered first is forgotten. */
const WORKERS_MAX = 20_000

export function makeSentRuns(): SentRuns {
  const last = new Map<WorkerId, readonly Sent[]>()
  return {
    of(worker, desiredVersion) {
      return last.get(worker)?.findLast(({ desired_version }) => desired_version === desiredVersion)?.runs ?? null
    },
    note(worker, sent) {
      const before = last.get(worker) ?? []
      last.delete(worker)
      last.set(worker, [...before, sent].slice(-ANSWERS_MAX))
      const [oldest] = last.keys()
      if (last.size > WORKERS_MAX && oldest !== undefined) last.delete(oldest)
    },
  }
}
