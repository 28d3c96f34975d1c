import { transitionAll } from '../control/sandboxes/transition-batches.ts'
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
/** A pass that comes so long after the one before says that this process or machine stood still in between. */
const ABSENCE_MS = WORKER_LEASE_MS / 2
/** Who has reported so lately, by the clocks of those that wrote and read its lease, is not looked at. */
const FRESH_MS = 1_000

/** A worker's last report, and since when this process has seen no later one. */
type LastReport = { readonly life: string | null; readonly report_seq: number; readonly sinceMs: number }

/** A worker that was about to be called lost has reported. */
class CameBack extends Error {}

/**
 * Calls the runs of a worker lost that has not reported for a lease: by then it has destroyed them itself. The lease is
 * counted by the clock of this process that only grows, from when it first saw the report: the clocks of two replicas may
 * differ by an hour. A control plane that was away has taken in no report meanwhile, be it that it was not started, that
 * its machine slept, or that its database was out of reach; so nobody is called lost before it has listened for one
 * lease's time without a break. The same holds for a process that has just come to lead: the loop is made anew with each lead.
 */
export function detectLostWorkers(deps: LostDeps): Loop {
  let sights = new Map<WorkerId, LastReport>()
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
        sights = new Map(silent.map((worker) => [worker.id, lastReportOf(worker, sights.get(worker.id), seenMs)]))
        const lost = silent.filter(({ id }) => {
          const sinceMs = Math.max(sights.get(id)?.sinceMs ?? seenMs, listeningSinceMs)
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
  { life, report_seq }: workers.SilentWorker,
  before: LastReport | undefined,
  nowMs: number,
): LastReport {
  const isSame = before?.life === life && before.report_seq === report_seq
  return isSame ? before : { life, report_seq, sinceMs: nowMs }
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
    // This process may stand still between its look and what it writes, for longer than the worker needs to come back.
    const fence = async (tx: Queryable): Promise<void> => {
      await deps.fence?.(tx)
      if (!(await workers.isSilentSince(tx, worker))) throw new CameBack(`worker '${worker.name}' has reported`)
    }
    try {
      await transitionAll(
        { ...deps, fence },
        open.map(({ run_id, sandbox_id }) => ({ sandbox_id, run_id, ...end })),
        signal,
      )
    } catch (error) {
      if (!(error instanceof CameBack)) throw error
      deps.log.info({ error, worker_id: worker.id }, 'a worker that was about to be called lost came back')
    }
  }
}
