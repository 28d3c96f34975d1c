import { Type } from 'typebox'
import type { TSchema } from 'typebox'
import { MessageReply } from './common.ts'
import { EventIdParams, EventPage, EventReply, ListEventsQuery } from './events.ts'
import { NoBody, NoParams, NoQuery, type Operation, type Reply } from './operation.ts'
import { OrgReply } from './org.ts'
import { HealthReply, ReadyReply } from './probes.ts'
import {
  CreateQuery, ListSandboxesQuery, SandboxIdParams, SandboxNameParams, SandboxPage, SandboxPatch, SandboxReply, StartQuery,
} from './sandboxes.ts' // prettier-ignore
import { CreateSandboxInput } from './spec-input.ts'

function operation<
  Params extends TSchema = typeof NoParams,
  Query extends TSchema = typeof NoQuery,
  Body extends TSchema = typeof NoBody,
>(given: Parts<Params, Query, Body>): Operation<Params, Query, Body>
function operation(given: Partial<Operation> & Pick<Operation, Given>): Operation {
  return { params: NoParams, query: NoQuery, body: NoBody, problems: [], access: 'key', ...given }
}
type Given = 'id' | 'method' | 'path' | 'tag' | 'summary' | 'reply'
type Parts<Params extends TSchema, Query extends TSchema, Body extends TSchema> = Pick<
  Operation<Params, Query, Body>,
  Given
> &
  Partial<Operation<Params, Query, Body>>

function json(schema: TSchema, description: string): Reply {
  return { kind: 'json', status: 200, schema, description }
}

const SANDBOX = json(SandboxReply, 'The sandbox as it is now.')
const START_PROBLEMS = [
  'sandbox_not_found', 'invalid_state_transition', 'quota_exceeded', 'org_suspended', 'rate_limited', 'orchestrator_unreachable',
] as const // prettier-ignore
const STOP_PROBLEMS = ['sandbox_not_found', 'invalid_state_transition', 'orchestrator_unreachable'] as const
const RENAME_PROBLEMS = ['sandbox_not_found', 'name_already_exists'] as const
const STOP_DESCRIPTION =
  'Answers at once; the workload gets SIGTERM, and SIGKILL after a grace time. Stopping a sandbox that is stopping succeeds.'
const START_DESCRIPTION =
  'With `wait_for` the answer comes when the sandbox runs, has failed, or the wait is over, whichever is first; its status says which.'
const DELETE_DESCRIPTION =
  'A sandbox that still runs is stopped first, which the answer does not wait for. Its name and slug are free at once.'

/** Every operation of the API. A route, its validation, its metrics and its documentation all follow from a row. */
export const OPERATIONS = {
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
    summary: 'Open the command channel of a running sandbox',
    description: 'A WebSocket upgrade. Binary messages carry the bytes of the agent protocol in both directions.',
    params: SandboxIdParams,
    reply: { kind: 'websocket', status: 101, description: 'The connection is a WebSocket from here on.' },
    problems: ['sandbox_not_found', 'invalid_state_transition', 'rate_limited', 'orchestrator_unreachable'],
  }),
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
  get_org: operation({
    id: 'get_org',
    method: 'GET',
    path: '/v1/me/org',
    tag: 'Organization',
    summary: 'Get the organization that the API key belongs to',
    reply: json(OrgReply, 'The organization and what the caller may do in it.'),
  }),
  list_events: operation({
    id: 'list_events',
    method: 'GET',
    path: '/v1/events',
    tag: 'Events',
    summary: 'List audit events, the newest first',
    query: ListEventsQuery,
    reply: json(EventPage, 'A page of events.'),
  }),
  get_event: operation({
    id: 'get_event',
    method: 'GET',
    path: '/v1/events/{event_id}',
    tag: 'Events',
    summary: 'Get an audit event',
    params: EventIdParams,
    reply: json(EventReply, 'The event.'),
    problems: ['event_not_found'],
  }),
  get_health: operation({
    id: 'get_health',
    method: 'GET',
    path: '/healthz',
    tag: 'Operation',
    summary: 'Whether the process is alive',
    reply: json(HealthReply, 'It is.'),
    access: 'none',
  }),
  get_readiness: operation({
    id: 'get_readiness',
    method: 'GET',
    path: '/readyz',
    tag: 'Operation',
    summary: 'Whether the process can serve requests',
    reply: json(ReadyReply, 'It can.'),
    problems: ['unavailable'],
    access: 'none',
  }),
  get_metrics: operation({
    id: 'get_metrics',
    method: 'GET',
    path: '/metrics',
    tag: 'Operation',
    summary: 'Metrics for Prometheus',
    reply: { kind: 'text', status: 200, description: "Prometheus' text format." },
    access: 'none',
  }),
  get_document: operation({
    id: 'get_document',
    method: 'GET',
    path: '/openapi.json',
    tag: 'Operation',
    summary: 'This document',
    reply: json(Type.Unknown(), 'An OpenAPI 3.1 document.'),
    access: 'none',
  }),
} as const satisfies Record<string, Operation>

export type OperationId = keyof typeof OPERATIONS
