import { parseJsonText } from '../exact-json.ts'
import { refusalProblem } from '../refusal.ts'

/** Refuses a body. */
export function refuse(field: string, seen: string, accepted: string): never {
  throw refusalProblem({ code: 'invalid_request', field, seen, accepted })
}

/** Like `parseJsonText`, but throws `invalid_request`. The first character has the position `from` in the body. */
export function parseText(text: string, from = 0): unknown {
  try {
    return parseJsonText(text)
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
    // The parser's own message quotes the text, which may contain a secret. Report only the position.
    const position = /position (\d+)/.exec(error.message)?.[1]
    const where = position === undefined ? '' : ` at position ${String(from + Number(position))}`
    return refuse('body', `text that is not JSON${where}`, 'a JSON document')
  }
}

/** The keys and indexes that lead to a value. */
export type JsonPath = readonly (string | number)[]

/**
 * Whether a JSON text may contain what PostgreSQL can't store. Only an escape sequence can, so most values need no second check.
 */
export function mayBeUnstorable(text: string): boolean {
  return text.includes('\\u')
}

/**
 * Throws `invalid_request` for a NUL or half of a surrogate pair in any text of a value at `path`. If it is a part of a list, its items
 * have the indexes from `firstIndex` on.
 */
export function requireStorable(value: unknown, path: JsonPath, firstIndex = 0): void {
  const fault = findFault(value)
  if (fault === null) return
  const within = fault.path.map((step, depth) => (depth === 0 && typeof step === 'number' ? step + firstIndex : step))
  refuse(formatPath([...path, ...within]), fault.seen, fault.accepted)
}

type Fault = { readonly path: JsonPath; readonly seen: string; readonly accepted: string }

/** The path is made only for a fault: a list may have two million items. */
function findFault(value: unknown): Fault | null {
  if (typeof value === 'string') {
    if (value.includes('\0')) return { path: [], seen: 'a NUL character', accepted: 'text without NUL' }
    if (!value.isWellFormed()) return { path: [], seen: 'half of a surrogate pair', accepted: 'Unicode text' }
    return null
  }
  if (typeof value !== 'object' || value === null) return null
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index += 1) {
      const fault = findFault(value[index])
      if (fault !== null) return { ...fault, path: [index, ...fault.path] }
    }
    return null
  }
  for (const [key, item] of Object.entries(value)) {
    const fault = findFault(key)
    if (fault !== null) return fault
    const inner = findFault(item)
    if (inner !== null) return { ...inner, path: [key, ...inner.path] }
  }
  return null
}

/** The name of a field, such as `mounts[0].guest`. */
export function formatPath(path: JsonPath): string {
  const text = path.reduce<string>((before, step) => joinField(before, String(step), typeof step === 'number'), '')
  return text === '' ? 'body' : text
}

/** Appends a key or an index to the name of a field. */
export function joinField(before: string, step: string, isIndex: boolean): string {
  if (isIndex) return `${before}[${step}]`
  return before === '' ? step : `${before}.${step}`
}
