import { Type } from 'typebox'
import { ISOLATION_LEVELS } from '../../domain/isolation.ts'
import { PAGE_DEFAULT, PAGE_MAX, WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
import { WORKER_STATES } from '../../domain/workers/worker.ts'
import {
  DateTime, int32, int64, MessageReply, nullable, pageOf, pageQuery, requestObject, stringEnum, Uuid,
} from '../common.ts' // prettier-ignore
import { defineOperation, jsonReply, type Operation } from '../operation.ts'

/** The installation as operators see it: its workers, what waits, its organizations and plans. */

const instant = (description: string) => nullable(Type.Unsafe<string>({ ...DateTime, description }))
const amounts = (description: string) =>
  Type.Unsafe<Record<string, number | null>>({
    type: 'object',
    additionalProperties: nullable(int64()),
    description,
  })

export const WorkerReply = Type.Object(
  {
    id: Uuid,
    name: Type.String({ description: 'Its name, which no other worker has at the same time.' }),
    state: stringEnum(WORKER_STATES, {
      description:
        '`joined`: it has not reported yet. `silent`: its lease is over. `draining`: it gets no new sandboxes.',
    }),
    driver: nullable(Type.String({ description: 'How it runs sandboxes. Null: it has not reported yet.' })),
    isolation: nullable(
      stringEnum(ISOLATION_LEVELS, { description: 'The isolation of its sandboxes. Null: none, or not reported.' }),
    ),
    vcpus: int32({ description: 'Its capacity.' }),
    used_vcpus: int32({ description: 'What its sandboxes may use of it.' }),
    memory_mib: int64(),
    used_memory_mib: int64({ description: 'What its sandboxes may use of it, in MiB.' }),
    disk_mib: nullable(int64({ description: 'For the disks of sandboxes. Null: not limited.' })),
    used_disk_mib: int64({ description: 'The sizes of all disks, those of stopped sandboxes included.' }),
    sandboxes: int32({ description: 'How many sandboxes it runs, or starts.' }),
    joined_at: DateTime,
    last_report_at: instant('When it last reported. Null: it has not.'),
    draining_since: instant('Since when it drains. Null: it does not.'),
    drain_deadline_at: instant(
      'When the sandboxes of a draining worker are asked to stop. Null: they run to their end.',
    ),
    refused_claims: nullable(
      Type.String({ description: 'What its last report claimed beyond what its join token allows. Null: nothing.' }),
    ),
  },
  { title: 'Worker', description: 'A machine that runs sandboxes.' },
)

export const WaitingSandboxReply = Type.Object(
  {
    id: Uuid,
    name: Type.String(),
    slug: Type.String(),
    org: Type.String({ description: 'The slug of its organization.' }),
    waits_since: Type.Unsafe<string>({ ...DateTime, description: 'Since when no worker has room for it.' }),
    reason: Type.String({ description: 'What it needs that no worker has free now.' }),
  },
  { title: 'WaitingSandbox', description: 'A sandbox of any organization that waits for a worker.' },
)

export const WaitingSandboxesReply = Type.Object(
  {
    waiting: int32({
      description: `How many sandboxes wait. ${String(WAITING_COUNTED_MAX + 1)}: more than ${String(WAITING_COUNTED_MAX)}.`,
    }),
    data: Type.Array(WaitingSandboxReply, { description: 'The first of them, in the order of the queue.' }),
  },
  { title: 'WaitingSandboxes', description: 'The sandboxes that wait for a worker, and why.' },
)

export const InstallationOrgReply = Type.Object(
  {
    id: Uuid,
    slug: Type.String(),
    name: Type.String(),
    plan: Type.String({ description: 'The plan with its limits and prices.' }),
    quota_overrides: amounts('Its own limits, which replace those of the plan. Null: unlimited.'),
    suspended_at: instant('Since when it may start nothing. Null: it may.'),
  },
  { title: 'InstallationOrg', description: 'An organization of the installation.' },
)

export const PlanReply = Type.Object(
  {
    name: Type.String(),
    limits: amounts('Its limits. Null or absent: unlimited.'),
    has_prices: Type.Boolean({ description: 'Whether use beyond what it includes is priced.' }),
    orgs: int32({ description: 'How many organizations are on it.' }),
  },
  { title: 'Plan', description: 'Limits and prices that organizations share.' },
)

const PlansReply = Type.Object(
  { data: Type.Array(PlanReply) },
  { title: 'Plans', description: 'All plans of the installation.' },
)

export const ServerReply = Type.Object(
  {
    url: nullable(Type.String({ description: 'Where workers reach it. Null: it told none.' })),
    version: Type.String({ description: 'The version of the program.' }),
    schema_version: int32({ description: 'The newest migration of the database that it knows.' }),
    started_at: DateTime,
  },
  { title: 'Server', description: 'A process that serves the API.' },
)

const ServersReply = Type.Object(
  { data: Type.Array(ServerReply) },
  { title: 'Servers', description: 'The processes that serve the API now.' },
)

const PageQuery = requestObject(pageQuery)
const WaitingQuery = requestObject({
  limit: Type.Optional(
    int64({ minimum: 1, maximum: PAGE_MAX, default: PAGE_DEFAULT, description: 'How many sandboxes `data` has.' }),
  ),
})
const WorkerNameParams = requestObject({ worker_name: Type.String({ description: 'The name of the worker.' }) })

const DRAIN_SECS_MAX = 30 * 86_400
const DrainInput = requestObject(
  {
    deadline_secs: Type.Optional(
      nullable(
        int64({
          maximum: DRAIN_SECS_MAX,
          description: 'After how many seconds its sandboxes are asked to stop. Null or absent: they run to their end.',
        }),
      ),
    ),
  },
  { title: 'DrainWorkerInput', description: 'How a worker is drained.' },
)

const common = { tag: 'Installation', access: 'operator' } as const
const BY_OPERATORS = 'Needs the session of a member who is an operator.'

/** The operations of operators on the installation. */
export const INSTALLATION_OPERATIONS = {
  list_servers: defineOperation({
    ...common,
    id: 'list_servers',
    method: 'GET',
    path: '/v1/installation/servers',
    summary: 'The processes that serve the API, with their versions',
    description: BY_OPERATORS,
    reply: jsonReply(ServersReply, 'The processes that said lately that they live.'),
  }),
  list_workers: defineOperation({
    ...common,
    id: 'list_workers',
    method: 'GET',
    path: '/v1/installation/workers',
    summary: 'The workers with their capacity and use, in the order of joining',
    description: BY_OPERATORS,
    query: PageQuery,
    reply: jsonReply(pageOf(WorkerReply, 'WorkerPage'), 'A page of workers.'),
  }),
  drain_worker: defineOperation({
    ...common,
    id: 'drain_worker',
    method: 'POST',
    path: '/v1/installation/workers/{worker_name}/drain',
    summary: 'Give a worker no new sandboxes',
    description: `${BY_OPERATORS} A repeated request sets the new deadline.`,
    params: WorkerNameParams,
    body: DrainInput,
    reply: jsonReply(MessageReply, 'The worker drains.'),
    problems: ['not_found'],
    isResumable: true,
  }),
  resume_worker: defineOperation({
    ...common,
    id: 'resume_worker',
    method: 'POST',
    path: '/v1/installation/workers/{worker_name}/resume',
    summary: 'Give a drained worker sandboxes again',
    description: `${BY_OPERATORS} May be repeated.`,
    params: WorkerNameParams,
    reply: jsonReply(MessageReply, 'The worker gets sandboxes again.'),
    problems: ['not_found'],
    isResumable: true,
  }),
  list_waiting_sandboxes: defineOperation({
    ...common,
    id: 'list_waiting_sandboxes',
    method: 'GET',
    path: '/v1/installation/waiting',
    summary: 'The sandboxes of all organizations that wait for a worker, and why',
    description: BY_OPERATORS,
    query: WaitingQuery,
    reply: jsonReply(WaitingSandboxesReply, 'The sandboxes that wait.'),
  }),
  list_orgs: defineOperation({
    ...common,
    id: 'list_orgs',
    method: 'GET',
    path: '/v1/installation/organizations',
    summary: 'The organizations with their plan, the oldest first',
    description: BY_OPERATORS,
    query: PageQuery,
    reply: jsonReply(pageOf(InstallationOrgReply, 'InstallationOrgPage'), 'A page of organizations.'),
  }),
  list_plans: defineOperation({
    ...common,
    id: 'list_plans',
    method: 'GET',
    path: '/v1/installation/plans',
    summary: 'The plans with their limits',
    description: BY_OPERATORS,
    reply: jsonReply(PlansReply, 'All plans.'),
  }),
} as const satisfies Record<string, Operation>
