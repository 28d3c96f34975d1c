import { jsonReply, defineOperation, type Operation } from '../operation.ts'
import { QuotaUsageReply } from './quotas.ts'

/** The limits of the caller's organization; they are set by the `sandyard` command alone. */
export const QUOTA_OPERATIONS = {
  get_quotas: defineOperation({
    id: 'get_quotas',
    method: 'GET',
    path: '/v1/quotas',
    tag: 'Quotas',
    summary: 'Get the limits in force and what is in use',
    reply: jsonReply(QuotaUsageReply, 'Every limit, null where there is none, and what is in use.'),
  }),
} as const satisfies Record<string, Operation>
