import { defineOperation, type Operation } from '../operation.ts'
import { LogEventData, SandboxLogsHeaders, SandboxLogsQuery } from './sandbox-logs.ts'
import { SandboxIdParams } from '../sandboxes/sandboxes.ts'

/** What sandboxes write. Source: client traffic, sections 2 and 7. */
export const LOG_OPERATIONS = {
  read_sandbox_logs: defineOperation({
    id: 'read_sandbox_logs',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/logs',
    tag: 'Sandboxes',
    summary: 'Read and follow what a sandbox writes',
    description:
      'Server-Sent Events, the oldest line first: `log` for each, and `end` when nothing more can come, because the run that was followed is over or `follow` is false. A stream that ends without `end` is gone on with by `Last-Event-ID`, as an EventSource does by itself. A sandbox that never ran can be followed only once it runs.',
    params: SandboxIdParams,
    query: SandboxLogsQuery,
    headers: SandboxLogsHeaders,
    reply: { kind: 'events', status: 200, schema: LogEventData, description: 'The events, as they come.' },
    problems: ['sandbox_not_found', 'invalid_state_transition', 'rate_limited'],
  }),
} as const satisfies Record<string, Operation>
