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
  const { err } = pino.stdSerializers
  return pino(
    { level, redact: ['req.headers.authorization', '*.password', '*.secret'], serializers: { err, error: err } },
    pino.destination({ dest: 2, sync: true }),
  )
}
