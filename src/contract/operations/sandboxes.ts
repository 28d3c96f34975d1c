import { CHANNEL_ENDS_TEXT } from '../channel-ends.ts'
import { MessageReply } from '../common.ts'
import { json, operation, type Operation } from '../operation.ts'
import {
  CreateQuery, ListSandboxesQuery, SandboxIdParams, SandboxPage, SandboxPatch, StartQuery,
} from '../sandboxes.ts' // prettier-ignore
import { CreateSandboxInput } from '../spec-input.ts'
import {
  DELETE_DESCRIPTION, RENAME_PROBLEMS, SANDBOX, START_DESCRIPTION, START_PROBLEMS, STOP_DESCRIPTION, STOP_PROBLEMS,
} from './sandbox-words.ts' // prettier-ignore

/** Sandboxes by their id. Source: service description 4.1 to 4.5. */
export const SANDBOX_OPERATIONS = {
  create_sandbox: operation({
    id: 'create_sandbox',
    method: 'POST',
    path: '/v1/sandboxes',
    tag: 'Sandboxes',
    summary: 'Create a sandbox, and start it if asked to',
    description: START_DESCRIPTION,
    query: CreateQuery,
    body: CreateSandboxInput,
    reply: SANDBOX,
    problems: [
      'invalid_sandbox_config', 'name_already_exists', 'quota_exceeded', 'org_suspended', 'rate_limited', 'orchestrator_unreachable',
    ], // prettier-ignore
  }),
  list_sandboxes: operation({
    id: 'list_sandboxes',
    method: 'GET',
    path: '/v1/sandboxes',
    tag: 'Sandboxes',
    summary: 'List sandboxes, the newest first',
    query: ListSandboxesQuery,
    reply: json(SandboxPage, 'A page of sandboxes.'),
  }),
  get_sandbox: operation({
    id: 'get_sandbox',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Get a sandbox',
    params: SandboxIdParams,
    reply: SANDBOX,
    problems: ['sandbox_not_found'],
  }),
  update_sandbox: operation({
    id: 'update_sandbox',
    method: 'PATCH',
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Change the name or the slug of a sandbox',
    params: SandboxIdParams,
    body: SandboxPatch,
    reply: SANDBOX,
    problems: RENAME_PROBLEMS,
  }),
  delete_sandbox: operation({
    id: 'delete_sandbox',
    method: 'DELETE',
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Delete a sandbox',
    description: DELETE_DESCRIPTION,
    params: SandboxIdParams,
    reply: json(MessageReply, 'The sandbox is gone.'),
    problems: STOP_PROBLEMS,
  }),
  start_sandbox: operation({
    id: 'start_sandbox',
    method: 'POST',
    path: '/v1/sandboxes/{sandbox_id}/start',
    tag: 'Sandboxes',
    summary: 'Start a sandbox',
    description: START_DESCRIPTION,
    params: SandboxIdParams,
    query: StartQuery,
    reply: SANDBOX,
    problems: START_PROBLEMS,
  }),
  stop_sandbox: operation({
    id: 'stop_sandbox',
    method: 'POST',
    path: '/v1/sandboxes/{sandbox_id}/stop',
    tag: 'Sandboxes',
    summary: 'Stop a sandbox',
    description: STOP_DESCRIPTION,
    params: SandboxIdParams,
    reply: SANDBOX,
    problems: STOP_PROBLEMS,
  }),
  open_agent: operation({
    id: 'open_agent',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/agent',
    tag: 'Sandboxes',
    access: 'write',
    summary: 'Open the command channel of a running sandbox',
    description: `A WebSocket upgrade. Binary messages carry the bytes of the agent protocol in both directions. ${CHANNEL_ENDS_TEXT}`,
    params: SandboxIdParams,
    reply: { kind: 'websocket', status: 101, description: 'The connection is a WebSocket from here on.' },
    problems: [
      'sandbox_not_found',
      'invalid_state_transition',
      'org_suspended',
      'rate_limited',
      'orchestrator_unreachable',
    ],
  }),
} as const satisfies Record<string, Operation>
