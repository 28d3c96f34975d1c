import { OPERATIONS } from '../../contract/operations.ts'
import type { QUOTA_OPERATIONS } from '../../contract/orgs/quota-operations.ts'
import type { Handler, HandlerFactory } from './handler.ts'
import type { UseCases } from '../use-cases.ts'

/** What the operations on quotas ask of the use cases. */
export function makeQuotaHandlers(
  useCases: UseCases,
  handler: HandlerFactory,
): Record<keyof typeof QUOTA_OPERATIONS, Handler> {
  return {
    get_quotas: handler(OPERATIONS.get_quotas, async (_request, { caller }) =>
      JSON.stringify(await useCases.getQuotas(caller)),
    ),
  }
}
