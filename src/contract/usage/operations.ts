import { Type } from 'typebox'
import { DateTime, nullable, requestObject, Uuid } from '../common.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'

/** The schemas and operations of usage reports: metered amounts and their costs. */

export const UsageQuery = requestObject({
  since: Type.Optional(
    Type.String({
      format: 'date-time',
      description: 'The start of the range, inclusive. Default: the start of the UTC month that contains `until`.',
    }),
  ),
  until: Type.Optional(
    Type.String({
      format: 'date-time',
      description:
        'The end of the range, exclusive, at most 366 days after its start. Default: now. Without `since` and `until`: the current UTC month so far.',
    }),
  ),
})

/** With `limit` or `cursor`, the reply is a page. Without them, it has all rows. */
export const SandboxUsageQuery = requestObject({
  ...UsageQuery.properties,
  cursor: Type.Optional(
    Type.String({ description: 'The `next_cursor` of the previous page. Pass the same `since` and `until`.' }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 10_000,
      description: 'The maximum number of rows in the page. Default with a cursor: 10,000. Without both: no pages.',
    }),
  ),
})

const UsageLineItem = Type.Object(
  {
    name: Type.String(),
    quantity: Type.Number(),
    unit: Type.String(),
    amount_cents: Type.Integer({ description: 'The price of the usage beyond what the plan includes.' }),
  },
  { title: 'UsageLineItem', description: 'The usage of one metric in the whole range, and its price.' },
)

const UsageDailyPoint = Type.Object(
  {
    date: Type.String({ format: 'date-time', description: 'The start of the day: midnight UTC.' }),
    metric: Type.String({ description: 'The name of the line item.' }),
    quantity: Type.Number({ description: "In the line item's unit." }),
  },
  { title: 'UsageDailyPoint', description: 'The usage of one metric on one day.' },
)

export const UsageSummaryReply = Type.Object(
  {
    period_start: DateTime,
    period_end: Type.String({
      format: 'date-time',
      description: 'The end of the range. For the current month: the end of the month.',
    }),
    line_items: Type.Array(UsageLineItem),
    daily: Type.Array(UsageDailyPoint, { description: 'One point for each metric and day, up to today.' }),
    total_cents: Type.Integer(),
    projected_spend_cents: Type.Integer({
      description:
        'The total at the end of the period if usage continues at the same rate. For a period that has ended: the total.',
    }),
    storage_gib: nullable(
      Type.Number({
        description: 'The size of all volumes and snapshots now, in GiB. Null if no worker has reported any.',
      }),
    ),
  },
  { title: 'UsageSummary', description: 'The metered usage in a range, and its price.' },
)

const SandboxDailyUsage = Type.Object(
  {
    sandbox_id: Uuid,
    day: Type.String({ format: 'date-time', description: 'The start of the day: midnight UTC.' }),
    vcpu_seconds: Type.Number(),
    mem_mib_seconds: Type.Number(),
    disk_mib_seconds: Type.Number(),
  },
  {
    title: 'SandboxDailyUsage',
    description: 'The usage of a sandbox on one day. An open run counts up to now.',
  },
)

const SandboxIdentity = Type.Object(
  { id: Uuid, name: Type.String(), slug: Type.String() },
  { title: 'SandboxIdentity', description: 'The name of a sandbox. For a deleted one: its last name.' },
)

export const UsageBreakdownReply = Type.Object(
  {
    rows: Type.Array(SandboxDailyUsage),
    sandboxes: Type.Array(SandboxIdentity),
    has_more: Type.Optional(Type.Boolean({ description: 'Whether another page follows. Only in pages.' })),
    next_cursor: Type.Optional(nullable(Type.String({ description: 'The `cursor` of the next page. Only in pages.' }))),
  },
  {
    title: 'UsageBreakdown',
    description: 'One row for each sandbox and day with usage, by day, and the names of the sandboxes.',
  },
)

const StorageDailyUsage = Type.Object(
  {
    volume_id: Uuid,
    day: Type.String({ format: 'date-time', description: 'The start of the day: midnight UTC.' }),
    mib_seconds: Type.Integer({
      description: 'Rounded so that the values of several ranges within a day add up to the value of the whole day.',
    }),
  },
  {
    title: 'StorageDailyUsage',
    description:
      'The storage that a volume used on one day: its size multiplied by the time for which it had that size.',
  },
)

const VolumeIdentity = Type.Object(
  { id: Uuid, name: nullable(Type.String({ description: 'Null for the default volume.' })) },
  { title: 'VolumeIdentity', description: 'The name of a volume.' },
)

export const StorageBreakdownReply = Type.Object(
  { rows: Type.Array(StorageDailyUsage), volumes: Type.Array(VolumeIdentity) },
  {
    title: 'StorageBreakdown',
    description:
      'One row for each volume and day with usage, and the names of the volumes. Deleted volumes have rows but no name.',
  },
)

/** The operations of usage reports. */
export const USAGE_OPERATIONS = {
  get_usage: defineOperation({
    id: 'get_usage',
    method: 'GET',
    path: '/v1/billing/usage',
    tag: 'Usage',
    summary: 'Get the metered usage and its price',
    query: UsageQuery,
    reply: jsonReply(UsageSummaryReply, 'Line items, a daily series and totals.'),
  }),
  get_sandbox_breakdown: defineOperation({
    id: 'get_sandbox_breakdown',
    method: 'GET',
    path: '/v1/billing/usage/sandbox',
    tag: 'Usage',
    summary: 'Get usage by sandbox and day',
    description:
      'With `limit` or `cursor`, the reply is a page. A page may have fewer rows than `limit`, or none, although more follow. Without them, a range with more than 400,000 rows is refused.',
    query: SandboxUsageQuery,
    reply: jsonReply(UsageBreakdownReply, 'Usage by sandbox and day.'),
  }),
  get_storage_breakdown: defineOperation({
    id: 'get_storage_breakdown',
    method: 'GET',
    path: '/v1/billing/usage/storage',
    tag: 'Usage',
    summary: 'Get storage usage by volume and day',
    description: 'A range with more than 400,000 rows is refused.',
    query: UsageQuery,
    reply: jsonReply(StorageBreakdownReply, 'Storage usage by volume and day.'),
  }),
} as const satisfies Record<string, Operation>
