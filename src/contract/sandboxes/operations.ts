import { defineOperation, jsonReply, taggedReply, type Operation } from '../operation.ts'
import {
  CreateQuery,
  ListSandboxesQuery,
  SandboxIdParams,
  SandboxNameParams,
  SandboxPage,
  SandboxPatch,
  SandboxReply,
  StartQuery,
  WaitQuery,
} from './sandboxes.ts'
import { CHANNEL_ENDS_TEXT } from './channel-ends.ts'
import { MessageReply } from '../common.ts'
import { CreateSandboxInput } from './spec-input.ts'

/** Replies and texts that the operations by id and by name share. */

export const SANDBOX = taggedReply(SandboxReply, 'The sandbox as it is now.')
export const WAIT_PROBLEMS = ['sandbox_not_found', 'run_over', 'rate_limited'] as const
export const WAIT_DESCRIPTION =
  'Replies when the sandbox has one of the statuses in `for`, or when `timeout` is over; check the status in the reply. With `run`, the reply is 409 once that run can no longer reach any of these statuses.'
export const START_PROBLEMS = [
  'sandbox_not_found', 'invalid_state_transition', 'quota_exceeded', 'org_suspended', 'rate_limited', 'orchestrator_unreachable',
] as const // prettier-ignore
export const STOP_PROBLEMS = ['sandbox_not_found', 'invalid_state_transition', 'orchestrator_unreachable'] as const
export const RENAME_PROBLEMS = ['sandbox_not_found', 'name_already_exists'] as const
export const STOP_DESCRIPTION =
  'Replies at once. The workload gets SIGTERM, and SIGKILL after a grace time. Stopping a sandbox that is stopping succeeds.'
export const START_DESCRIPTION =
  'With `wait_for`, the reply comes when the sandbox runs, when it has failed, or when `wait_timeout` is over; check the status in the reply.'
export const DELETE_DESCRIPTION =
  'A sandbox that still runs is stopped; the reply does not wait for that. Its name and slug are free at once.'

/** The operations on sandboxes by id. */
export const SANDBOX_OPERATIONS = {
  create_sandbox: defineOperation({
    id: 'create_sandbox',
    method: 'POST',
    isResumable: true,
    path: '/v1/sandboxes',
    tag: 'Sandboxes',
    summary: 'Create a sandbox, and start it with `start=true`',
    description: START_DESCRIPTION,
    query: CreateQuery,
    body: CreateSandboxInput,
    reply: SANDBOX,
    problems: [
      'invalid_sandbox_config', 'name_already_exists', 'quota_exceeded', 'org_suspended', 'rate_limited', 'orchestrator_unreachable',
      'start_timed_out', 'snapshot_not_found',
    ], // prettier-ignore
  }),
  list_sandboxes: defineOperation({
    id: 'list_sandboxes',
    method: 'GET',
    path: '/v1/sandboxes',
    tag: 'Sandboxes',
    summary: 'List sandboxes, the newest first',
    query: ListSandboxesQuery,
    reply: jsonReply(SandboxPage, 'A page of sandboxes.'),
  }),
  get_sandbox: defineOperation({
    id: 'get_sandbox',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Get a sandbox',
    params: SandboxIdParams,
    reply: SANDBOX,
    problems: ['sandbox_not_found'],
  }),
  wait_for_sandbox: defineOperation({
    id: 'wait_for_sandbox',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/wait',
    tag: 'Sandboxes',
    summary: 'Wait until a sandbox has a status',
    description: WAIT_DESCRIPTION,
    params: SandboxIdParams,
    query: WaitQuery,
    reply: SANDBOX,
    problems: WAIT_PROBLEMS,
  }),
  update_sandbox: defineOperation({
    id: 'update_sandbox',
    method: 'PATCH',
    checksIfMatch: true,
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Change the name or the slug of a sandbox',
    params: SandboxIdParams,
    body: SandboxPatch,
    reply: SANDBOX,
    problems: RENAME_PROBLEMS,
  }),
  delete_sandbox: defineOperation({
    id: 'delete_sandbox',
    method: 'DELETE',
    checksIfMatch: true,
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Delete a sandbox',
    description: DELETE_DESCRIPTION,
    params: SandboxIdParams,
    reply: jsonReply(MessageReply, 'The sandbox is deleted.'),
    problems: STOP_PROBLEMS,
  }),
  start_sandbox: defineOperation({
    id: 'start_sandbox',
    method: 'POST',
    checksIfMatch: true,
    isResumable: true,
    path: '/v1/sandboxes/{sandbox_id}/start',
    tag: 'Sandboxes',
    summary: 'Start a sandbox',
    description: START_DESCRIPTION,
    params: SandboxIdParams,
    query: StartQuery,
    reply: SANDBOX,
    problems: START_PROBLEMS,
  }),
  stop_sandbox: defineOperation({
    id: 'stop_sandbox',
    method: 'POST',
    checksIfMatch: true,
    isResumable: true,
    path: '/v1/sandboxes/{sandbox_id}/stop',
    tag: 'Sandboxes',
    summary: 'Stop a sandbox',
    description: STOP_DESCRIPTION,
    params: SandboxIdParams,
    reply: SANDBOX,
    problems: STOP_PROBLEMS,
  }),
  open_agent: defineOperation({
    id: 'open_agent',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/agent',
    tag: 'Sandboxes',
    access: 'write',
    summary: 'Open the command channel of a running sandbox',
    description: `A WebSocket upgrade. Binary messages carry the bytes of the agent protocol in both directions. ${CHANNEL_ENDS_TEXT}`,
    params: SandboxIdParams,
    reply: { kind: 'websocket', status: 101, description: 'The connection is a WebSocket now.' },
    problems: [
      'sandbox_not_found',
      'invalid_state_transition',
      'org_suspended',
      'rate_limited',
      'orchestrator_unreachable',
    ],
  }),
} as const satisfies Record<string, Operation>

/** The operations on sandboxes by name, which the public client uses. */
export const SANDBOX_BY_NAME_OPERATIONS = {
  get_sandbox_by_name: defineOperation({
    id: 'get_sandbox_by_name',
    method: 'GET',
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Get a sandbox by its name',
    params: SandboxNameParams,
    reply: SANDBOX,
    problems: ['sandbox_not_found'],
  }),
  wait_for_sandbox_by_name: defineOperation({
    id: 'wait_for_sandbox_by_name',
    method: 'GET',
    path: '/v1/sandboxes/by-name/{name}/wait',
    tag: 'Sandboxes by name',
    summary: 'Wait until a sandbox, found by its name, has a status',
    description: WAIT_DESCRIPTION,
    params: SandboxNameParams,
    query: WaitQuery,
    reply: SANDBOX,
    problems: WAIT_PROBLEMS,
  }),
  update_sandbox_by_name: defineOperation({
    id: 'update_sandbox_by_name',
    method: 'PATCH',
    checksIfMatch: true,
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Change the name or the slug of a sandbox, found by its name',
    params: SandboxNameParams,
    body: SandboxPatch,
    reply: SANDBOX,
    problems: RENAME_PROBLEMS,
  }),
  delete_sandbox_by_name: defineOperation({
    id: 'delete_sandbox_by_name',
    method: 'DELETE',
    checksIfMatch: true,
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Delete a sandbox by its name',
    description: DELETE_DESCRIPTION,
    params: SandboxNameParams,
    reply: jsonReply(MessageReply, 'The sandbox is deleted.'),
    problems: STOP_PROBLEMS,
  }),
  start_sandbox_by_name: defineOperation({
    id: 'start_sandbox_by_name',
    method: 'POST',
    checksIfMatch: true,
    isResumable: true,
    path: '/v1/sandboxes/by-name/{name}/start',
    tag: 'Sandboxes by name',
    summary: 'Start a sandbox by its name',
    description: START_DESCRIPTION,
    params: SandboxNameParams,
    query: StartQuery,
    reply: SANDBOX,
    problems: START_PROBLEMS,
  }),
  stop_sandbox_by_name: defineOperation({
    id: 'stop_sandbox_by_name',
    method: 'POST',
    checksIfMatch: true,
    isResumable: true,
    path: '/v1/sandboxes/by-name/{name}/stop',
    tag: 'Sandboxes by name',
    summary: 'Stop a sandbox by its name',
    description: STOP_DESCRIPTION,
    params: SandboxNameParams,
    reply: SANDBOX,
    problems: STOP_PROBLEMS,
  }),
} as const satisfies Record<string, Operation>
