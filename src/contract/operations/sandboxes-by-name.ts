import { MessageReply } from '../common.ts'
import { json, operation, type Operation } from '../operation.ts'
import { SandboxNameParams, SandboxPatch, StartQuery } from '../sandboxes.ts'
import {
  DELETE_DESCRIPTION, RENAME_PROBLEMS, SANDBOX, START_DESCRIPTION, START_PROBLEMS, STOP_DESCRIPTION, STOP_PROBLEMS,
} from './sandbox-words.ts' // prettier-ignore

/** Sandboxes by their name, as the public client asks for them. */
export const SANDBOX_BY_NAME_OPERATIONS = {
  get_sandbox_by_name: operation({
    id: 'get_sandbox_by_name',
    method: 'GET',
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Get a sandbox by its name',
    params: SandboxNameParams,
    reply: SANDBOX,
    problems: ['sandbox_not_found'],
  }),
  update_sandbox_by_name: operation({
    id: 'update_sandbox_by_name',
    method: 'PATCH',
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Change the name or the slug of a sandbox, found by its name',
    params: SandboxNameParams,
    body: SandboxPatch,
    reply: SANDBOX,
    problems: RENAME_PROBLEMS,
  }),
  delete_sandbox_by_name: operation({
    id: 'delete_sandbox_by_name',
    method: 'DELETE',
    path: '/v1/sandboxes/by-name/{name}',
    tag: 'Sandboxes by name',
    summary: 'Delete a sandbox by its name',
    description: DELETE_DESCRIPTION,
    params: SandboxNameParams,
    reply: json(MessageReply, 'The sandbox is gone.'),
    problems: STOP_PROBLEMS,
  }),
  start_sandbox_by_name: operation({
    id: 'start_sandbox_by_name',
    method: 'POST',
    path: '/v1/sandboxes/by-name/{name}/start',
    tag: 'Sandboxes by name',
    summary: 'Start a sandbox by its name',
    description: START_DESCRIPTION,
    params: SandboxNameParams,
    query: StartQuery,
    reply: SANDBOX,
    problems: START_PROBLEMS,
  }),
  stop_sandbox_by_name: operation({
    id: 'stop_sandbox_by_name',
    method: 'POST',
    path: '/v1/sandboxes/by-name/{name}/stop',
    tag: 'Sandboxes by name',
    summary: 'Stop a sandbox by its name',
    description: STOP_DESCRIPTION,
    params: SandboxNameParams,
    reply: SANDBOX,
    problems: STOP_PROBLEMS,
  }),
} as const satisfies Record<string, Operation>
