import type { WorkerId } from '../../domain/ids.ts'
import type { KnownRuns } from '../../store/sandboxes/runs.ts'

/** What this process sent to each worker last, so that its next answer has only what changed since then. */
export type SentRuns = {
  /** The runs of the answer with a `desired_version`. Null if that isn't the last one that this process made for the worker. */
  of(worker: WorkerId, desiredVersion: string | null): KnownRuns | null
  note(worker: WorkerId, sent: Sent): void
}

type Sent = { readonly desired_version: string; readonly runs: KnownRuns }

/** How many workers are remembered: some 100 bytes for each run. Beyond that, the one that was answered first is forgotten. */
const WORKERS_MAX = 20_000

export function makeSentRuns(): SentRuns {
  const last = new Map<WorkerId, Sent>()
  return {
    of(worker, desiredVersion) {
      const sent = last.get(worker)
      return sent?.desired_version === desiredVersion ? sent.runs : null
    },
    note(worker, sent) {
      last.delete(worker)
      last.set(worker, sent)
      const [oldest] = last.keys()
      if (last.size > WORKERS_MAX && oldest !== undefined) last.delete(oldest)
    },
  }
}
