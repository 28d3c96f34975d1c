import { Type } from 'typebox'
import { LOG_FOLLOW_DEFAULT_SECS, LOG_FOLLOW_MAX_SECS, LOG_TAIL_MAX } from '../../domain/requests/request-bounds.ts'
import { DateTime, requestObject, int64, stringEnum } from '../common.ts'
import { LOG_SOURCES } from './log-protocol.ts'

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
