import {
  decodeLogCursor,
  DEFAULT_LOG_SOURCES,
  encodeLogCursor,
  LAST_EVENT_ID_HEADER,
  LOG_CURSOR_RULE,
  type LOG_OPERATIONS,
} from '../../contract/streams/operations.ts'
import { LOG_SOURCES, type LogEntry, type LogPosition, type LogSource } from '../../contract/streams/log-protocol.ts'
import type { RequestOf } from '../../contract/operation.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import { readLogs, type LogRequest, type LogBatch } from '../../control/streams/read-logs.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { LOG_FOLLOW_DEFAULT_SECS } from '../../domain/requests/request-bounds.ts'
import { parseInstant, refuseField, type Handler, type HandlerFactory, type AuthenticatedRequest } from './handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'

/** Creates the handler of sandbox logs. */
export function makeSandboxLogHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof LOG_OPERATIONS, Handler> {
  return {
    read_sandbox_logs: handler(OPERATIONS.read_sandbox_logs, async (request, raw) => {
      const input = { ...parseLogRequest(request, raw), signal: raw.signal() }
      return { events: renderEvents(await call(readLogs, raw.caller, input)) }
    }),
  }
}

type Request = RequestOf<(typeof OPERATIONS)['read_sandbox_logs']>

function parseLogRequest({ params, query }: Request, { headers }: AuthenticatedRequest): Omit<LogRequest, 'signal'> {
  const after = parsePosition(headers[LAST_EVENT_ID_HEADER])
  const since = parseInstant(query.since)
  const until = parseInstant(query.until)
  if (since !== null && until !== null && until <= since)
    refuseField('query.until', query.until, `an instant after since, ${since.toISOString()}`)
  return {
    id: asId<SandboxId>(params.sandbox_id.toLowerCase()),
    query: {
      sources: parseSources(query.sources),
      after,
      since: since?.toISOString() ?? null,
      until: until?.toISOString() ?? null,
      tail: after === null ? (query.tail ?? null) : null,
    },
    followMs: parseFollowMs(query),
  }
}

function parseSources(text: string | undefined): readonly LogSource[] {
  if (text === undefined) return DEFAULT_LOG_SOURCES
  const words = new Set(text.split(','))
  const known = LOG_SOURCES.filter((source) => words.delete(source))
  for (const word of words) refuseField('query.sources', word, `${LOG_SOURCES.join(', ')}, separated by commas`)
  return known
}

/**
 * How long to follow the log, in milliseconds. Null: don't follow it. `follow_timeout` with `follow=false` is refused,
 * because it would have no effect.
 */
function parseFollowMs({ follow = true, follow_timeout }: Request['query']): number | null {
  if (follow) return (follow_timeout ?? LOG_FOLLOW_DEFAULT_SECS) * 1000
  if (follow_timeout !== undefined)
    refuseField('query.follow_timeout', follow_timeout, 'follow_timeout only with follow=true')
  return null
}

function parsePosition(header: string | string[] | undefined): LogPosition | null {
  if (header === undefined) return null
  const position = typeof header === 'string' ? decodeLogCursor(header) : null
  return position ?? refuseField(LAST_EVENT_ID_HEADER, header, LOG_CURSOR_RULE)
}

async function* renderEvents(batches: AsyncIterable<LogBatch>): AsyncGenerator<string> {
  for await (const { entries, isLast } of batches) {
    const text = entries.map(renderEntry).join('')
    yield isLast ? `${text}event: end\ndata: {}\n\n` : text
  }
}

/** Renders one log entry as an event. JSON text contains no line feed, so it fits in one `data` line. */
function renderEntry({ position, source, ts, text }: LogEntry): string {
  return `id: ${encodeLogCursor(position)}\nevent: log\ndata: ${JSON.stringify({ source, ts, text })}\n\n`
}
