import { Type } from 'typebox'
import { LOG_FOLLOW_DEFAULT_SECS, LOG_FOLLOW_MAX_SECS, LOG_TAIL_MAX } from '../../domain/requests/request-bounds.ts'
import { DateTime, int64, requestObject, stringEnum } from '../common.ts'
import { LOG_SOURCES, type LogPosition } from './log-protocol.ts'
import { defineOperation, type Operation } from '../operation.ts'
import { SandboxIdParams } from '../sandboxes/sandboxes.ts'

/** The log of a sandbox, as it is asked for and told. Source: client traffic, section 7; what is beside it there is ours. */

/** The sources of a stream that names none: as the public client asks without `--source`. */
export const DEFAULT_LOG_SOURCES = ['stdout', 'stderr', 'output'] as const

/** By which a client says where it left off (HTML, "Server-sent events"). */
export const LAST_EVENT_ID_HEADER = 'last-event-id'

export const SandboxLogsQuery = requestObject({
  sources: Type.Optional(
    Type.String({
      default: DEFAULT_LOG_SOURCES.join(','),
      description: `Whose lines are wanted, separated by commas: ${LOG_SOURCES.join(', ')}.`,
    }),
  ),
  follow: Type.Optional(
    Type.Boolean({ default: true, description: 'Whether to wait for what the sandbox will still write.' }),
  ),
  follow_timeout: Type.Optional(
    int64({
      minimum: 1,
      maximum: LOG_FOLLOW_MAX_SECS,
      default: LOG_FOLLOW_DEFAULT_SECS,
      description:
        'Seconds after which the stream ends, to be gone on with by `Last-Event-ID`; not with `follow=false`. The public client allows 30.',
    }),
  ),
  since: Type.Optional(Type.Unsafe<string>({ ...DateTime, description: 'No lines before this instant.' })),
  until: Type.Optional(Type.Unsafe<string>({ ...DateTime, description: 'Only lines before this instant.' })),
  tail: Type.Optional(
    int64({
      maximum: LOG_TAIL_MAX,
      description:
        'Of the lines that are there already only the last so many. It says where to begin, and so means nothing beside `Last-Event-ID`.',
    }),
  ),
})

export const SandboxLogsHeaders = requestObject({
  [LAST_EVENT_ID_HEADER]: Type.Optional(
    Type.String({ description: 'The `id` of the last event that was seen: the stream goes on behind it.' }),
  ),
})

export const LogEventData = Type.Object(
  {
    source: stringEnum(LOG_SOURCES, {
      description: '`output`: a terminal, where both are one; `system`: what the worker has to say.',
    }),
    ts: DateTime,
    text: Type.String({
      description: 'A line with its line feed; without one when the line goes on in the next event of its source.',
    }),
  },
  { title: 'LogEventData', description: 'The data of an event of type `log`.' },
)

/**
 * Positions as the public client carries them: standard base64 of `n:u8 + n × (u64 LE generation, u64 LE offset)`; a log of
 * one worker has one of them. Any other text kills the client's stream. Source: client traffic, section 7.
 */
const POSITIONS = 1
const BYTES = 1 + POSITIONS * 16

/** What a cursor is, for a refusal. */
export const LOG_CURSOR_RULE = 'the id of an event of this stream, unchanged'

/** The cursor of a position. */
export function encodeLogCursor({ generation, offset }: LogPosition): string {
  const bytes = Buffer.alloc(BYTES)
  bytes.writeUInt8(POSITIONS)
  bytes.writeBigUInt64LE(BigInt(generation), 1)
  bytes.writeBigUInt64LE(BigInt(offset), 9)
  return bytes.toString('base64')
}

/** The position of a cursor; null for a text that `encodeLogCursor` does not make. */
export function decodeLogCursor(text: string): LogPosition | null {
  const bytes = Buffer.from(text, 'base64')
  if (bytes.length !== BYTES || bytes.readUInt8() !== POSITIONS || bytes.toString('base64') !== text) return null
  const generation = Number(bytes.readBigUInt64LE(1))
  const offset = Number(bytes.readBigUInt64LE(9))
  return Number.isSafeInteger(generation) && Number.isSafeInteger(offset) ? { generation, offset } : null
}

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
