import { Type } from 'typebox'
import { LOG_FOLLOW_DEFAULT_SECS, LOG_FOLLOW_MAX_SECS, LOG_TAIL_MAX } from '../../domain/requests/request-bounds.ts'
import { DateTime, int64, requestObject, stringEnum } from '../common.ts'
import { LOG_SOURCES, type LogPosition } from './log-protocol.ts'
import { defineOperation, type Operation } from '../operation.ts'
import { SandboxIdParams } from '../sandboxes/sandboxes.ts'

/** The log operations of sandboxes: their parameters, events and cursors. */

/** The log sources of a request that names none. The public client sends none without `--source`. */
export const DEFAULT_LOG_SOURCES = ['stdout', 'stderr', 'output'] as const

/** The header with which a client resumes a stream (HTML standard, "Server-sent events"). */
export const LAST_EVENT_ID_HEADER = 'last-event-id'

export const SandboxLogsQuery = requestObject({
  sources: Type.Optional(
    Type.String({
      default: DEFAULT_LOG_SOURCES.join(','),
      description: `The sources to read, separated by commas: ${LOG_SOURCES.join(', ')}.`,
    }),
  ),
  follow: Type.Optional(
    Type.Boolean({ default: true, description: 'Whether to wait for lines that the sandbox writes later.' }),
  ),
  follow_timeout: Type.Optional(
    int64({
      minimum: 1,
      maximum: LOG_FOLLOW_MAX_SECS,
      default: LOG_FOLLOW_DEFAULT_SECS,
      description:
        'Seconds after which the stream ends; reconnect with `Last-Event-ID`. Only with `follow=true`. The public client ends a stream after 30 s.',
    }),
  ),
  since: Type.Optional(Type.Unsafe<string>({ ...DateTime, description: 'Only lines at or after this instant.' })),
  until: Type.Optional(Type.Unsafe<string>({ ...DateTime, description: 'Only lines before this instant.' })),
  tail: Type.Optional(
    int64({
      maximum: LOG_TAIL_MAX,
      description: 'How many of the existing lines to send: the latest ones. Ignored with `Last-Event-ID`.',
    }),
  ),
})

export const SandboxLogsHeaders = requestObject({
  [LAST_EVENT_ID_HEADER]: Type.Optional(
    Type.String({ description: 'The `id` of the last event that the client saw. The stream continues after it.' }),
  ),
})

export const LogEventData = Type.Object(
  {
    source: stringEnum(LOG_SOURCES, {
      description: '`output`: a terminal, which combines both streams. `system`: messages of the worker.',
    }),
    ts: DateTime,
    text: Type.String({
      description: 'A line with its line feed. Without one, the line continues in the next event of the same source.',
    }),
  },
  { title: 'LogEventData', description: 'The data of an event of type `log`.' },
)

/**
 * The number of positions in a cursor. A cursor is standard base64 of `n:u8 + n × (u64 LE generation, u64 LE offset)`,
 * the format of the public client. The client fails on any other text. A log that is stored on one worker has one
 * position.
 */
const POSITIONS = 1
const BYTES = 1 + POSITIONS * 16

/** Describes a valid cursor, for refusals. */
export const LOG_CURSOR_RULE = 'the id of an event of this stream, unchanged'

/** Encodes a position as a cursor. */
export function encodeLogCursor({ generation, offset }: LogPosition): string {
  const bytes = Buffer.alloc(BYTES)
  bytes.writeUInt8(POSITIONS)
  bytes.writeBigUInt64LE(BigInt(generation), 1)
  bytes.writeBigUInt64LE(BigInt(offset), 9)
  return bytes.toString('base64')
}

/** Decodes a cursor. Returns null for any text that `encodeLogCursor` does not return. */
export function decodeLogCursor(text: string): LogPosition | null {
  const bytes = Buffer.from(text, 'base64')
  if (bytes.length !== BYTES || bytes.readUInt8() !== POSITIONS || bytes.toString('base64') !== text) return null
  const generation = Number(bytes.readBigUInt64LE(1))
  const offset = Number(bytes.readBigUInt64LE(9))
  return Number.isSafeInteger(generation) && Number.isSafeInteger(offset) ? { generation, offset } : null
}

/** The operations on logs of sandboxes. */
export const LOG_OPERATIONS = {
  read_sandbox_logs: defineOperation({
    id: 'read_sandbox_logs',
    method: 'GET',
    path: '/v1/sandboxes/{sandbox_id}/logs',
    tag: 'Sandboxes',
    summary: 'Read and follow what a sandbox writes',
    description:
      'Server-Sent Events, the oldest line first: `log` for each line, then `end` when the followed run has ended or `follow` is false. If the stream drops before `end`, reconnect with `Last-Event-ID`, as an EventSource does automatically. A sandbox that never ran can be followed only once it runs.',
    params: SandboxIdParams,
    query: SandboxLogsQuery,
    headers: SandboxLogsHeaders,
    reply: { kind: 'events', status: 200, schema: LogEventData, description: 'A stream of events.' },
    problems: ['sandbox_not_found', 'invalid_state_transition', 'rate_limited'],
  }),
} as const satisfies Record<string, Operation>
