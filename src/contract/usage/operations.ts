import { StorageBreakdownReply, UsageBreakdownReply, UsageQuery, UsageSummaryReply } from './usage.ts'
import { jsonReply, defineOperation, type Operation } from '../operation.ts'

/** Usage and what it costs. Source: service description 4.7; contract decisions, "Time range of the usage routes". */
export const USAGE_OPERATIONS = {
  get_usage: defineOperation({
    id: 'get_usage',
    method: 'GET',
    path: '/v1/billing/usage',
    tag: 'Usage',
    summary: 'Get what was metered and what it costs',
    query: UsageQuery,
    reply: jsonReply(UsageSummaryReply, 'Line items, a daily series and totals.'),
  }),
  get_sandbox_breakdown: defineOperation({
    id: 'get_sandbox_breakdown',
    method: 'GET',
    path: '/v1/billing/usage/sandbox',
    tag: 'Usage',
    summary: 'Get usage by sandbox and day',
    description: 'A range that gives more than 400,000 rows is refused; `sandyard usage export` has no such limit.',
    query: UsageQuery,
    reply: jsonReply(UsageBreakdownReply, 'Usage by sandbox and day.'),
  }),
  get_storage_breakdown: defineOperation({
    id: 'get_storage_breakdown',
    method: 'GET',
    path: '/v1/billing/usage/storage',
    tag: 'Usage',
    summary: 'Get storage usage by volume and day',
    description: 'A range that gives more than 400,000 rows is refused.',
    query: UsageQuery,
    reply: jsonReply(StorageBreakdownReply, 'Storage usage by volume and day.'),
  }),
} as const satisfies Record<string, Operation>
