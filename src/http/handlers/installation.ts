import { OPERATIONS } from '../../contract/operations.ts'
import type { INSTALLATION_OPERATIONS } from '../../contract/workers/operations.ts'
import { listOrgs } from '../../control/orgs/orgs.ts'
import { listPlans } from '../../control/orgs/plans.ts'
import { listWaiting } from '../../control/workers/explain-waiting.ts'
import { drainWorker, listLiveWorkers, resumeWorker } from '../../control/workers/fleet.ts'
import { readLiveReplicas } from '../../control/workers/replicas.ts'
import { PAGE_DEFAULT } from '../../domain/requests/request-bounds.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { messageReply, pageInput, renderPage, type Handler, type HandlerFactory } from './handler.ts'

/** Creates the handlers of the operations of operators on the installation. */
export function makeInstallationHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof INSTALLATION_OPERATIONS, Handler> {
  return {
    list_servers: handler(OPERATIONS.list_servers, async () => {
      const servers = await call(readLiveReplicas)
      const data = servers.map(({ url, version, schema_version, started_at }) => {
        return { url, version, schema_version, started_at }
      })
      return JSON.stringify({ data })
    }),
    list_workers: handler(OPERATIONS.list_workers, async ({ query }) =>
      renderPage(await call(listLiveWorkers, pageInput(query)), (worker) => {
        const { runs: sandboxes, created_at: joined_at, bounds: _bounds, removed_at: _removed, ...rest } = worker
        return JSON.stringify({ ...rest, sandboxes, joined_at })
      }),
    ),
    drain_worker: handler(OPERATIONS.drain_worker, async ({ params, body }, { caller }) => {
      const { deadline_secs = null } = body
      const withinMs = deadline_secs === null ? null : deadline_secs * 1_000
      await call(drainWorker, params.worker_name, withinMs, caller.actor)
      return messageReply('worker draining')
    }),
    resume_worker: handler(OPERATIONS.resume_worker, async ({ params }, { caller }) => {
      await call(resumeWorker, params.worker_name, caller.actor)
      return messageReply('worker resumed')
    }),
    list_waiting_sandboxes: handler(OPERATIONS.list_waiting_sandboxes, async ({ query }) => {
      const { waiting, sandboxes } = await call(listWaiting, query.limit ?? PAGE_DEFAULT)
      return JSON.stringify({ waiting, data: sandboxes })
    }),
    list_orgs: handler(OPERATIONS.list_orgs, async ({ query }) =>
      renderPage(await call(listOrgs, pageInput(query)), (org) => JSON.stringify(org)),
    ),
    list_plans: handler(OPERATIONS.list_plans, async () => {
      const plans = await call(listPlans)
      const data = plans.map(({ prices, ...rest }) => ({ ...rest, has_prices: prices !== null }))
      return JSON.stringify({ data })
    }),
  }
}
