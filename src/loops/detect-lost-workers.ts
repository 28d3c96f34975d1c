import { moveAll, type MoveAllDeps, type Recheck } from '../control/sandboxes/transitions/transition-batches.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import type { WorkerId } from '../domain/ids.ts'
import { WORKER_LEASE_MS } from '../domain/workers/lease.ts'
import * as runs from '../store/sandboxes/runs.ts'
import * as workers from '../store/workers/workers.ts'
import type { Loop } from './loop.ts'

const PERIOD_MS = 2_000
/** If two passes are further apart than this, in milliseconds, this process or its machine was paused between them. */
const ABSENCE_MS = WORKER_LEASE_MS / 2
/** A worker is examined only if its last report is older than this, in milliseconds. */
const FRESH_MS = 1_000

/** A worker's last report, and the time when this process first saw that report. */
type LastReport = { readonly incarnation: string | null; readonly report_seq: number; readonly sinceMs: number }

/** Thrown instead of marking runs as lost, because their worker has reported in the meantime. */
class CameBack extends Error {}

/**
 * Marks the runs of a worker as lost if the worker has not reported for `WORKER_LEASE_MS`. By then, the worker has
 * destroyed the runs itself. The time is counted by this process's monotonic clock, from the moment when this process
 * first saw the worker's last report. Wall clocks are not compared, because those of two replicas may differ by an
 * hour. While the control plane is stopped, paused, or without its database, it receives no reports. Therefore the loop
 * marks no run as lost until it has run for `WORKER_LEASE_MS` without a gap. The same holds for each new leader.
 */
export function makeDetectLostWorkersLoop(deps: MoveAllDeps): Loop {
  let lastReports = new Map<WorkerId, LastReport>()
  let listeningSinceMs = deps.clock.monotonicMs()
  let lastPassAtMs = deps.clock.now().getTime()
  return {
    name: 'detect-lost-workers',
    periodMs: PERIOD_MS,
    topics: [],
    run: async (signal) => {
      const nowMs = deps.clock.now().getTime()
      if (nowMs - lastPassAtMs > ABSENCE_MS) listeningSinceMs = deps.clock.monotonicMs()
      lastPassAtMs = nowMs
      try {
        const deadline = new Date(nowMs + WORKER_LEASE_MS - FRESH_MS)
        const silent = await deps.db.asSystem((q) => workers.listSilent(q, deadline))
        const seenMs = deps.clock.monotonicMs()
        lastReports = new Map(
          silent.map((worker) => [worker.id, lastReportOf(worker, lastReports.get(worker.id), seenMs)]),
        )
        const lost = silent.filter(({ id }) => {
          const sinceMs = Math.max(lastReports.get(id)?.sinceMs ?? seenMs, listeningSinceMs)
          return seenMs - sinceMs >= WORKER_LEASE_MS
        })
        await markRunsLost(deps, lost, signal)
      } catch (error) {
        listeningSinceMs = deps.clock.monotonicMs()
        throw error
      }
      return null
    },
  }
}

function lastReportOf(
  { incarnation, report_seq }: workers.SilentWorker,
  before: LastReport | undefined,
  nowMs: number,
): LastReport {
  const isSame = before?.incarnation === incarnation && before.report_seq === report_seq
  return isSame ? before : { incarnation, report_seq, sinceMs: nowMs }
}

async function markRunsLost(
  deps: MoveAllDeps,
  lost: readonly workers.SilentWorker[],
  signal: AbortSignal,
): Promise<void> {
  for (const worker of lost) {
    const open = await deps.db.asSystem((q) => runs.ofWorker(q, worker.id))
    const why = worker.is_removed ? 'was removed' : `did not answer for ${String(WORKER_LEASE_MS / 1000)} s`
    const message = `worker lost: '${worker.name}' ${why}`
    const end = {
      event: 'worker_lost',
      outcome: { kind: 'lost', message },
      cause: { actor: SYSTEM_ACTOR, code: 'worker_lost', message },
    } as const
    // This process may be paused between its read of the silent workers and this write. In that time the worker may
    // report.
    const recheck: Recheck = async (tx) => {
      if (!(await workers.isSilentSince(tx, worker))) throw new CameBack(`worker '${worker.name}' has reported`)
    }
    try {
      await moveAll(
        deps,
        open.map(({ run_id, sandbox_id }) => ({ sandbox_id, run_id, ...end })),
        { signal, recheck },
      )
    } catch (error) {
      if (!(error instanceof CameBack)) throw error
      deps.log.info({ error, worker_id: worker.id }, 'a worker came back just before it was marked as lost')
    }
  }
}
