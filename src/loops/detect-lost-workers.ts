import { moveAll } from '../control/sandboxes/transition-batches.ts'
import type { TransitionDeps } from '../control/sandboxes/transition.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import type { WorkerId } from '../domain/ids.ts'
import { WORKER_LEASE_MS } from '../domain/workers/lease.ts'
import type { Log } from '../lib/log.ts'
import type { Queryable } from '../store/postgres/database.ts'
import * as runs from '../store/sandboxes/runs.ts'
import * as workers from '../store/workers/workers.ts'
import type { Loop } from './loop.ts'

type LostDeps = TransitionDeps & { readonly log: Log }

const PERIOD_MS = 2_000
/** A gap this long between two passes means that this process or its machine was paused. */
const ABSENCE_MS = WORKER_LEASE_MS / 2
/** Workers whose lease was renewed this recently are skipped. */
const FRESH_MS = 1_000

/** A worker's last report, and the time when this process first saw that report. */
type LastReport = { readonly incarnation: string | null; readonly report_seq: number; readonly sinceMs: number }

/** A worker that reported just before its runs were marked lost. */
class CameBack extends Error {}

/**
 * Marks the runs of a worker as lost if the worker has not reported for a lease. By then, the worker has destroyed the
 * runs itself. This process counts the lease from its first sight of the last report, by its monotonic clock. The wall
 * clocks of two replicas may differ by an hour. While the control plane is stopped, paused, or without its database, it
 * receives no reports. Therefore no worker is lost before the loop has run for one lease without a gap, also after a
 * change of the leader.
 */
export function detectLostWorkers(deps: LostDeps): Loop {
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

async function markRunsLost(deps: LostDeps, lost: readonly workers.SilentWorker[], signal: AbortSignal): Promise<void> {
  for (const worker of lost) {
    const open = await deps.db.asSystem((q) => runs.ofWorker(q, worker.id))
    const why = worker.is_removed ? 'was removed' : `did not answer for ${String(WORKER_LEASE_MS / 1000)} s`
    const message = `worker lost: '${worker.name}' ${why}`
    const end = {
      event: 'worker_lost',
      outcome: { kind: 'lost', message },
      cause: { actor: SYSTEM_ACTOR, code: 'worker_lost', message },
    } as const
    // This process may be paused between its read and its write. In that time the worker may come back.
    const fence = async (tx: Queryable): Promise<void> => {
      await deps.fence?.(tx)
      if (!(await workers.isSilentSince(tx, worker))) throw new CameBack(`worker '${worker.name}' has reported`)
    }
    try {
      await moveAll(
        { ...deps, fence },
        open.map(({ run_id, sandbox_id }) => ({ sandbox_id, run_id, ...end })),
        signal,
      )
    } catch (error) {
      if (!(error instanceof CameBack)) throw error
      deps.log.info({ error, worker_id: worker.id }, 'a worker came back just before it was marked lost')
    }
  }
}
