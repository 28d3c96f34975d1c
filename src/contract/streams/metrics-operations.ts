import { Type } from 'typebox'
import { USE_ORDERS } from '../../domain/sandboxes/use-sums.ts'
import { DateTime, int32, int64, nullable, nullableComponent, requestObject, stringEnum, Uuid } from '../common.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'
import { SandboxIdParams } from '../sandboxes/sandboxes.ts'

/** What sandboxes use: the operations of metrics, their parameters and replies. */

export const MetricPointReply = Type.Object(
  {
    at: Type.String({ format: 'date-time', description: 'The start of the step.' }),
    covered_secs: Type.Number({ description: 'How long the sandbox was measured in the step.' }),
    used_vcpus: Type.Number({ description: 'How many vCPUs it used on average while it was measured.' }),
    memory_bytes: int64({
      description: 'Its memory on average, without the cached files that the kernel can drop at once.',
    }),
    memory_max_bytes: int64({ description: 'The most memory.' }),
    processes: nullable(int64({ description: 'The most processes. Null: unknown, as in microVMs.' })),
    disk_used_bytes: nullable(int64({ description: 'The space that its files take on its disk.' })),
    received_bytes: nullable(int64({ description: 'What its network received in the step.' })),
    sent_bytes: nullable(int64({ description: 'What its network sent in the step.' })),
  },
  {
    title: 'MetricPoint',
    description: 'What a sandbox used in a step of time. Steps begin at multiples of their length.',
  },
)

export const MetricsReply = Type.Object(
  {
    step_secs: Type.Integer({
      description: 'The length of a step. Longer than asked for if no shorter ones are kept.',
    }),
    data: Type.Array(MetricPointReply, {
      description: 'In the order of time. A step without a measurement is missing.',
    }),
  },
  { title: 'SandboxMetrics', description: 'What a sandbox used in a range of time.' },
)

const MetricsQuery = requestObject({
  since: Type.Optional(
    Type.Unsafe<string>({
      ...DateTime,
      description: 'The start of the range, inclusive. Default: an hour before `until`.',
    }),
  ),
  until: Type.Optional(
    Type.Unsafe<string>({ ...DateTime, description: 'The end of the range, exclusive. Default: now.' }),
  ),
  step: Type.Optional(
    int64({
      minimum: 1,
      maximum: 86_400,
      description:
        'Seconds that one point stands for. Seconds are kept for an hour, minutes for a day, hours for 31 days. Default: what gives at most 400 points.',
    }),
  ),
})

const UseSumsProperties = {
  at: Type.Unsafe<string>({ ...DateTime, description: 'When they were read.' }),
  running: Type.Integer({ description: 'Sandboxes that run or are starting. The other members are about these.' }),
  measured: Type.Integer({ description: 'Those with a measurement. The sums of what is used are about these.' }),
  vcpus: Type.Number({ description: 'The vCPUs that they have.' }),
  used_vcpus: Type.Number({ description: 'The vCPUs that they use.' }),
  memory_bytes: int64({ description: 'The memory that they have.' }),
  used_memory_bytes: int64({ description: 'The memory that they use.' }),
  disk_used_bytes: int64({ description: 'The space that their files take on their disks.' }),
  received_bytes_per_sec: Type.Number({ description: 'What they receive.' }),
  sent_bytes_per_sec: Type.Number({ description: 'What they send.' }),
}

const runningSandboxProperties = {
  id: Uuid,
  name: Type.String(),
  slug: Type.String(),
  vcpus: int32(),
  memory_mib: int32(),
  started_at: nullable(DateTime),
  latest: nullableComponent(MetricPointReply),
}

export const OrgMetricsReply = Type.Object(
  {
    ...UseSumsProperties,
    data: Type.Array(
      Type.Object(runningSandboxProperties, {
        title: 'RunningSandboxMetrics',
        description: 'A running sandbox, and what it used at last.',
      }),
    ),
  },
  { title: 'OrgMetrics', description: 'What the running sandboxes of the organization use now.' },
)

export const InstallationMetricsReply = Type.Object(
  {
    ...UseSumsProperties,
    silent_workers: Type.Array(Type.String(), { description: 'The workers that did not answer.' }),
    data: Type.Array(
      Type.Object(
        {
          ...runningSandboxProperties,
          org: Type.String({ description: 'The slug of its organization.' }),
          worker: Type.String({ description: 'The worker that runs it.' }),
        },
        { title: 'InstallationSandboxMetrics', description: 'A running sandbox of any organization.' },
      ),
    ),
  },
  { title: 'InstallationMetrics', description: 'What the running sandboxes of all organizations use now.' },
)

const CurrentMetricsQuery = requestObject({
  order: Type.Optional(
    Type.Unsafe<(typeof USE_ORDERS)[number]>({
      ...stringEnum(USE_ORDERS),
      default: 'cpu',
      description: 'Which sandboxes come first: those that use the most of it.',
    }),
  ),
  limit: Type.Optional(
    int64({ minimum: 0, maximum: 10_000, default: 100, description: 'How many sandboxes `data` has.' }),
  ),
})

/** The operations on metrics. */
export const METRICS_OPERATIONS = {
  read_sandbox_metrics: defineOperation({
    id: 'read_sandbox_metrics',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/metrics',
    tag: 'Metrics',
    summary: 'What a sandbox used in a range of time',
    description:
      'Also of a stopped sandbox, until it is deleted. A sandbox that turns sampling off has none. At most 3,600 points.',
    params: SandboxIdParams,
    query: MetricsQuery,
    reply: jsonReply(MetricsReply, 'The points.'),
    problems: ['sandbox_not_found'],
  }),
  follow_sandbox_metrics: defineOperation({
    id: 'follow_sandbox_metrics',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/metrics/stream',
    tag: 'Metrics',
    summary: 'Follow what a sandbox uses',
    description:
      'Server-Sent Events: `point` for each sample, at the interval of the sandbox, then `end` when its run has ended, or at once if it does not run or is not sampled. A stream that ends without `end` has lost its worker: reconnect.',
    params: SandboxIdParams,
    reply: { kind: 'events', status: 200, schema: MetricPointReply, description: 'A stream of events.' },
    problems: ['sandbox_not_found', 'rate_limited'],
  }),
  read_org_metrics: defineOperation({
    id: 'read_org_metrics',
    method: 'GET',
    path: '/v1/metrics',
    tag: 'Metrics',
    summary: 'What the running sandboxes of the organization use now',
    query: CurrentMetricsQuery,
    reply: jsonReply(OrgMetricsReply, 'The sums, and the sandboxes that use the most.'),
  }),
  read_installation_metrics: defineOperation({
    id: 'read_installation_metrics',
    method: 'GET',
    path: '/v1/installation/metrics',
    tag: 'Metrics',
    access: 'operator',
    summary: 'What the running sandboxes of all organizations use now',
    description:
      'Needs a key of an operator, which only the `sandyard` command makes, or the session of a member who is an operator.',
    query: CurrentMetricsQuery,
    reply: jsonReply(InstallationMetricsReply, 'The sums, and the sandboxes that use the most.'),
  }),
} as const satisfies Record<string, Operation>
