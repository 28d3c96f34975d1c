import { Type } from 'typebox'
import { WAIT_DEFAULT_SECS, WAIT_MAX_SECS, WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
import { ISOLATION_LEVELS } from '../../domain/isolation.ts'
import { SANDBOX_STATUSES, STATUS_REASONS } from '../../domain/sandboxes/lifecycle.ts'
import { NAME_RULE, SLUG_RULE } from '../../domain/names.ts'
import { REQUIREMENT_KINDS } from '../../domain/workers/explain-placement.ts'
import {
  nullableComponent,
  DateTime,
  requestObject,
  int64,
  stringEnum,
  nullable,
  pageOf,
  Uuid,
  pageQuery,
} from '../common.ts'
import { SandboxSpecReply } from './spec-output.ts'

/** Sandboxes in replies, and the parameters of their routes. */

/** The statuses that a wait request may name. */
const WAITABLE = [...SANDBOX_STATUSES, 'terminal'] as const

const SandboxStatus = stringEnum(SANDBOX_STATUSES, {
  title: 'SandboxStatus',
  description: 'The status of a sandbox in its lifecycle.',
})

const MissingReply = Type.Object(
  {
    kind: stringEnum(REQUIREMENT_KINDS),
    name: Type.String({ description: 'The name of the requirement: an amount such as `vcpus`, or an ability.' }),
    requested: Type.Union([int64(), Type.String()], { description: 'An amount, or a text.' }),
    largest_free: nullable(
      int64({ description: 'For an amount: how much is free on the worker that comes closest to the need.' }),
    ),
    accepted: nullable(
      Type.String({ description: 'For a text: what a worker would need to satisfy the requirement.' }),
    ),
  },
  { title: 'SandboxMissing', description: 'Something that a sandbox needs and no worker has free now.' },
)

const WaitingDetailsReply = Type.Object(
  {
    position: int64({
      description: `The position of the sandbox among those that wait for a worker; 1 is the next. At most ${String(WAITING_COUNTED_MAX)}.`,
    }),
    waiting: int64({ description: `How many sandboxes wait for a worker; at most ${String(WAITING_COUNTED_MAX)}.` }),
    missing: Type.Array(MissingReply, { description: 'Empty if a worker has the capacity by now.' }),
    largest_free: Type.Object(
      {
        vcpus: int64(),
        memory_mib: int64(),
        disk_mib: nullable(
          int64({ description: 'For new disks. Null: the worker does not limit the sum of its disks.' }),
        ),
      },
      { description: 'The free capacity of the worker that comes closest to what the sandbox needs.' },
    ),
  },
  {
    title: 'SandboxWaiting',
    description: 'Why a sandbox waits for a worker. Only in replies of one sandbox, not in lists.',
  },
)

export const SandboxReply = Type.Object(
  {
    id: Uuid,
    org_id: Uuid,
    name: Type.String({ description: "The sandbox's name within its organization." }),
    slug: Type.String({ description: 'A handle that is unique among all organizations.' }),
    status: SandboxStatus,
    ephemeral: Type.Boolean(),
    created_at: DateTime,
    last_failure_message: Type.Optional(nullable(Type.String({ description: 'Why the latest run failed.' }))),
    started_at: Type.Optional(nullable(DateTime)),
    status_reason: Type.Optional(
      nullable(stringEnum(STATUS_REASONS, { description: 'Why a sandbox that is starting does not run yet.' })),
    ),
    stopped_at: Type.Optional(nullable(DateTime)),
    run_id: Type.Optional(
      nullable(
        Type.String({
          format: 'uuid',
          description: 'The latest run, open or ended. Null before the first start.',
        }),
      ),
    ),
    isolation: Type.Optional(
      nullable(
        stringEnum(ISOLATION_LEVELS, {
          description: 'What separates the latest run from its machine. Null until it runs.',
        }),
      ),
    ),
    status_details: Type.Optional(nullableComponent(WaitingDetailsReply)),
    spec: Type.Optional(nullableComponent(SandboxSpecReply)),
  },
  { title: 'Sandbox', description: 'A sandbox.' },
)

export const SandboxPage = pageOf(SandboxReply, 'SandboxPage')

export const SandboxPatch = requestObject(
  {
    name: Type.Optional(nullable(Type.String({ description: `The new name: ${NAME_RULE}.` }))),
    slug: Type.Optional(
      nullable(Type.String({ description: `The new slug: ${SLUG_RULE}. The old slug stops working.` })),
    ),
  },
  { title: 'SandboxPatch', description: 'A change of a sandbox. A field that is absent or null keeps its value.' },
)

export const SandboxIdParams = requestObject({ sandbox_id: Uuid })
export const SandboxNameParams = requestObject({ name: Type.String() })

/** What a create may do with a sandbox that doesn't run in time. */
const ON_TIMEOUT = ['keep', 'cancel'] as const

/** The query parameters of operations that can wait until a sandbox runs. */
export const waitQuery = {
  wait_for: Type.Optional(
    stringEnum(['running'], {
      description: 'Delays the reply until the sandbox runs or has failed, or until `wait_timeout` is over.',
    }),
  ),
  wait_timeout: Type.Optional(
    int64({
      maximum: WAIT_MAX_SECS,
      default: WAIT_DEFAULT_SECS,
      description: 'The longest wait, in seconds. Only with `wait_for`.',
    }),
  ),
}

/** The query parameters of the wait operations. `terminal` stands for `stopped` and `failed`. */
export const WaitQuery = requestObject({
  for: Type.Optional(
    Type.String({
      pattern: `^(?:${WAITABLE.join('|')})(?:,(?:${WAITABLE.join('|')}))*$`,
      maxLength: 200,
      default: 'terminal',
      description: 'The statuses that end the wait, separated by commas. `terminal` stands for `stopped,failed`.',
    }),
  ),
  timeout: Type.Optional(
    int64({ maximum: WAIT_MAX_SECS, default: WAIT_DEFAULT_SECS, description: 'The longest wait, in seconds.' }),
  ),
  run: Type.Optional(
    Type.String({
      format: 'uuid',
      description: 'Waits for this run only: the wait ends when the sandbox has another `run_id`.',
    }),
  ),
})

export const CreateQuery = requestObject({
  start: Type.Optional(Type.Boolean({ default: false, description: 'Whether to start the sandbox too.' })),
  ...waitQuery,
  on_timeout: Type.Optional(
    stringEnum(ON_TIMEOUT, {
      description:
        'What happens to a sandbox that is still starting when `wait_timeout` is over or the client disconnects. `keep`, the default: it goes on starting, and the reply shows it. `cancel`: it is deleted, and the reply is 504 `start_timed_out`. Only with `wait_for`.',
    }),
  ),
})
export const StartQuery = requestObject(waitQuery)
export const ListSandboxesQuery = requestObject({
  ...pageQuery,
  labels: Type.Optional(
    Type.String({ description: 'A JSON object of labels. Only sandboxes with all of them are listed.' }),
  ),
})
