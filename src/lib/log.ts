import { pino } from 'pino'
import { errorCodeOf } from './error-code.ts'
import { formatPretty } from './pretty-log.ts'

/**
 * The fields of a line, without those that every line has. pino would write such a field a second time: many programs that read JSON
 * refuse the line, and the others see one of both values. A line at a terminal would not show it.
 */
export type LogFields = Readonly<Record<string, unknown>> &
  Readonly<Partial<Record<'level' | 'time' | 'pid' | 'hostname' | 'msg', never>>>

/** The program's log, a subset of pino's logger. Calls pass fields first, then a message. */
export interface Log {
  debug(fields: LogFields, message: string): void
  info(fields: LogFields, message: string): void
  warn(fields: LogFields, message: string): void
  error(fields: LogFields, message: string): void
  child(fields: Record<string, unknown>): Log
}

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

export const LOG_FORMATS = ['json', 'pretty'] as const
export type LogFormat = (typeof LOG_FORMATS)[number]

/**
 * Makes a log that writes lines to standard error: JSON, or text for a terminal. Standard output is for data that a person or a
 * script reads.
 */
export function makeLog(level: LogLevel, format: LogFormat = 'json'): Log {
  const standardError = pino.destination({ dest: 2, sync: true })
  return pino(
    {
      level,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: [
        'password',
        'secret',
        'credential',
        '*.password',
        '*.secret',
        '*.credential',
        '*.registry_auth',
        '*.secrets',
      ],
      // Lines name an error `error`. pino's own serializer of `err` would write all that a library attached to one.
      serializers: { err: describeError, error: describeError },
    },
    format === 'json' ? standardError : { write: (line) => standardError.write(formatPretty(line)) },
  )
}

type DescribedError = {
  readonly type: string
  readonly message: string
  readonly code?: string
  readonly stack?: string
  readonly cause?: unknown
}

/**
 * Copies only the listed members of an error into the log. Database libraries attach more to their errors, such as the
 * whole connection and the parameters of the statement.
 */
function describeError(error: unknown): unknown {
  if (!(error instanceof Error)) return typeof error === 'string' ? error : typeof error
  const code = errorCodeOf(error)
  const described: DescribedError = {
    type: error.constructor.name,
    message: error.message,
    ...(code === null ? {} : { code }),
    ...(error.stack === undefined ? {} : { stack: error.stack }),
    ...(error.cause === undefined ? {} : { cause: describeError(error.cause) }),
  }
  return described
}
