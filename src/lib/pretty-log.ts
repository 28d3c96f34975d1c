import { styleText } from 'node:util'
import { escapeControls } from './terminal-text.ts'

/** Members of a line that are not fields of the message. */
const FRAME: ReadonlySet<string> = new Set(['level', 'time', 'pid', 'hostname', 'msg', 'error'])
const COLORS = { debug: 'dim', info: 'green', warn: 'yellow', error: 'red' } as const

/**
 * Formats a JSON line of the log for a terminal: time, level, message and fields in one line. The stack of an error follows in
 * lines of its own. Tenants choose names and messages, so control characters are escaped: none of them reaches the terminal.
 */
export function formatPretty(json: string): string {
  const line: Readonly<Record<string, unknown>> = JSON.parse(json)
  const level = String(line['level'])
  const fields = Object.entries(line).filter(([name]) => !FRAME.has(name))
  const error = line['error']
  const parts = [
    styleText('dim', String(line['time']), { validateStream: false }),
    styleText(colorOf(level), level.toUpperCase().padEnd(5), { validateStream: false }),
    escapeControls(String(line['msg'])),
    ...fields.map(([name, value]) => styleText('dim', `${name}=`, { validateStream: false }) + formatValue(value)),
  ]
  return `${parts.join(' ')}\n${error === undefined ? '' : formatError(error)}`
}

function colorOf(level: string): (typeof COLORS)[keyof typeof COLORS] {
  return Object.entries(COLORS).find(([name]) => name === level)?.[1] ?? 'dim'
}

/** A word is shown as it is. Other texts are quoted, so that a reader sees where they end. */
function formatValue(value: unknown): string {
  if (typeof value === 'string' && /^[\w.:/@+-]+$/.test(value)) return value
  return escapeControls(JSON.stringify(value))
}

type ErrorLine = { readonly message?: unknown; readonly stack?: unknown; readonly cause?: unknown }

function formatError(error: unknown, prefix = ''): string {
  if (typeof error !== 'object' || error === null) return `    ${prefix}${escapeControls(String(error))}\n`
  const { message, stack, cause }: ErrorLine = error
  const text = [stack, message].find((one) => typeof one === 'string') ?? JSON.stringify(error)
  const lines = text.split('\n')
  const own = lines.map((line, index) => `    ${index === 0 ? prefix : ''}${escapeControls(line)}\n`).join('')
  return cause === undefined ? own : own + formatError(cause, 'caused by: ')
}
