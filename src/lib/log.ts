import { pino } from 'pino'

/** What the program logs to; a narrow view of pino's logger. Fields first, then a sentence. */
export interface Log {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
  child(fields: Record<string, unknown>): Log
}

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

/** Logs JSON lines to standard error, so that standard output stays for what a person or a script reads. */
export function makeLog(level: LogLevel): Log {
  return pino(
    {
      level,
      redact: ['password', 'secret', 'credential', '*.password', '*.secret', '*.credential', '*.registry_auth'],
      serializers: { err: describeError, error: describeError },
    },
    pino.destination({ dest: 2, sync: true }),
  )
}

type DescribedError = {
  readonly type: string
  readonly message: string
  readonly code?: string
  readonly stack?: string
  readonly cause?: unknown
}

/** Only what is named here: libraries hang whole connections on their errors, with the values of statements. */
function describeError(error: unknown): unknown {
  if (!(error instanceof Error)) return typeof error === 'string' ? error : typeof error
  const described: DescribedError = {
    type: error.constructor.name,
    message: error.message,
    ...('code' in error ? { code: String(error.code) } : {}),
    ...(error.stack === undefined ? {} : { stack: error.stack }),
    ...(error.cause === undefined ? {} : { cause: describeError(error.cause) }),
  }
  return described
}
