import { OPERATIONS } from '../../contract/operations.ts'
import { getQuotas } from '../../control/orgs/quotas.ts'
import type { QUOTA_OPERATIONS } from '../../contract/orgs/quota-operations.ts'
import type { Handler, HandlerFactory, CallUseCase } from './handler.ts'

/** What the operations on quotas ask of the use cases. */
export function makeQuotaHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof QUOTA_OPERATIONS, Handler> {
  return {
    get_quotas: handler(OPERATIONS.get_quotas, async (_request, { caller }) =>
      JSON.stringify(await call(getQuotas, caller)),
    ),
  }
}
