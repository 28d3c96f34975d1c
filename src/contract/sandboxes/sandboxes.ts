import { Type } from 'typebox'
import { WAIT_DEFAULT_SECS, WAIT_MAX_SECS, WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
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

/** Sandboxes in replies and in the parameters of their routes. Source: service description 2.2 and 4.1 to 4.5. */

/** The words for what a wait is for. */
const WAITABLE = [...SANDBOX_STATUSES, 'terminal'] as const

const SandboxStatus = stringEnum(SANDBOX_STATUSES, {
  title: 'SandboxStatus',
  description: 'Where a sandbox stands in its life.',
})

const MissingReply = Type.Object(
  {
    kind: stringEnum(REQUIREMENT_KINDS),
    name: Type.String({ description: 'Such as `vcpus`, or the name of an ability.' }),
    requested: Type.Union([int64(), Type.String()], { description: 'An amount, or in words.' }),
    largest_free: nullable(int64({ description: 'Of an amount: what the worker that comes closest has free.' })),
    accepted: nullable(Type.String({ description: 'Of what is no amount: what would do.' })),
  },
  { title: 'SandboxMissing', description: 'Something that no worker has for a sandbox now.' },
)

const WaitingDetailsReply = Type.Object(
  {
    position: int64({
      description: `Its place among those that wait; 1 is the next. Counted up to ${String(WAITING_COUNTED_MAX)}.`,
    }),
    waiting: int64({ description: 'How many wait, counted as far.' }),
    missing: Type.Array(MissingReply, { description: 'Empty when there is room by now.' }),
    largest_free: Type.Object(
      { vcpus: int64(), memory_mib: int64() },
      { description: 'What is free on the worker that comes closest to taking it.' },
    ),
  },
  {
    title: 'SandboxWaiting',
    description: 'Why a sandbox waits for a worker with room. In replies of one sandbox that waits, and in no list.',
  },
)

export const SandboxReply = Type.Object(
  {
    id: Uuid,
    org_id: Uuid,
    name: Type.String({ description: "The sandbox's name within its organization." }),
    slug: Type.String({ description: 'The handle that no other sandbox has, in any organization.' }),
    status: SandboxStatus,
    ephemeral: Type.Boolean(),
    created_at: DateTime,
    last_failure_message: Type.Optional(nullable(Type.String({ description: 'Why the latest run failed.' }))),
    started_at: Type.Optional(nullable(DateTime)),
    status_reason: Type.Optional(
      nullable(stringEnum(STATUS_REASONS, { description: 'Why a starting sandbox does not run yet.' })),
    ),
    stopped_at: Type.Optional(nullable(DateTime)),
    run_id: Type.Optional(
      nullable(Type.String({ format: 'uuid', description: 'The latest start, open or over; null before the first.' })),
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
      nullable(Type.String({ description: `The new slug: ${SLUG_RULE}. Addresses with the old one stop working.` })),
    ),
  },
  { title: 'SandboxPatch', description: 'What to change; a field that is absent or null stays as it is.' },
)

export const SandboxIdParams = requestObject({ sandbox_id: Uuid })
export const SandboxNameParams = requestObject({ name: Type.String() })

/** Query parameters of the routes that may wait for a sandbox to run. */
export const waitQuery = {
  wait_for: Type.Optional(
    stringEnum(['running'], { description: 'Answers when the sandbox runs, has failed, or the wait is over.' }),
  ),
  wait_timeout: Type.Optional(
    int64({
      maximum: WAIT_MAX_SECS,
      default: WAIT_DEFAULT_SECS,
      description: 'The longest wait in seconds; only with `wait_for`.',
    }),
  ),
}

/** What a wait may be for; `terminal` is `stopped` and `failed`. */
export const WaitQuery = requestObject({
  for: Type.Optional(
    Type.String({
      pattern: `^(?:${WAITABLE.join('|')})(?:,(?:${WAITABLE.join('|')}))*$`,
      maxLength: 200,
      default: 'terminal',
      description: 'The statuses that end the wait, with commas between them; `terminal` is `stopped,failed`.',
    }),
  ),
  timeout: Type.Optional(
    int64({ maximum: WAIT_MAX_SECS, default: WAIT_DEFAULT_SECS, description: 'The longest wait in seconds.' }),
  ),
  run: Type.Optional(
    Type.String({ format: 'uuid', description: 'The `run_id` that is waited for: another one ends the wait.' }),
  ),
})

export const CreateQuery = requestObject({
  start: Type.Optional(Type.Boolean({ default: false, description: 'Whether to start the sandbox as well.' })),
  ...waitQuery,
})
export const StartQuery = requestObject(waitQuery)
export const ListSandboxesQuery = requestObject({
  ...pageQuery,
  labels: Type.Optional(Type.String({ description: 'A JSON object of labels, all of which a sandbox must have.' })),
})
