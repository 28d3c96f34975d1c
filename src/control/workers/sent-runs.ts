import type { WorkerId } from '../../domain/ids.ts'
import { SYNCS_AT_ONCE } from '../../contract/workers/worker-protocol.ts'
import type { KnownRuns } from '../../store/sandboxes/runs.ts'

/** What this process sent to each worker last, so that its next answer has only what changed since then. */
export type SentRuns = {
  /** The runs of the answer with a `desired_version`. Null unless it is one of the last `SYNCS_AT_ONCE` of this process for the worker. */
  of(worker: WorkerId, desiredVersion: string | null): KnownRuns | null
  note(worker: WorkerId, sent: Sent): void
}

type Sent = { readonly desired_version: string; readonly runs: KnownRuns }

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
      // A report in flight doesn't know the version of the answer to the one before it.
      last.set(worker, [...before, sent].slice(-SYNCS_AT_ONCE))
      const [oldest] = last.keys()
      if (last.size > WORKERS_MAX && oldest !== undefined) last.delete(oldest)
    },
  }
}
