import { isUtf8 } from 'node:buffer'
import { refusalProblem } from '../../domain/refusal.ts'
import { nextTurn } from '../../lib/next-turn.ts'

/** The deepest nesting of lists and objects in a body. The API's own schemas are less than 10 deep. */
export const DEPTH_MAX = 32

/**
 * The maximum number of keys of one object. The largest object of the API has 256. The number is limited because each
 * key, however short, costs a lookup in a set.
 */
export const KEYS_MAX = 4096

/**
 * Parses strict JSON. Throws `invalid_request` for a text that is not JSON in UTF-8 or is nested too deeply. It also
 * refuses a repeated key, `__proto__`, NUL, and half of a surrogate pair, because data would be lost or a later step
 * would fail.
 */
export function parseJson(body: Buffer): unknown {
  return parseChecked(checkedTextOf(body))
}

/** How many characters of a large body are checked in one turn of the event loop. 4 million with 8,000 keys take 20 ms (2026-11). */
const CHECKED_AT_ONCE = 1024 * 1024

/** The same for a large body. Its check has several turns of the event loop, and its parsing one. */
export async function parseLargeJson(body: Buffer): Promise<unknown> {
  const text = textOf(body)
  const check: StructureCheck = { at: 0, open: [] }
  while (check.at < text.length) {
    await nextTurn()
    refuseBad(checkStructure(text, check, check.at + CHECKED_AT_ONCE))
  }
  await nextTurn()
  return parseChecked(text)
}

function checkedTextOf(body: Buffer): string {
  const text = textOf(body)
  refuseBad(findBadStructure(text))
  return text
}

function textOf(body: Buffer): string {
  if (!isUtf8(body)) refuse('body', 'bytes that are not UTF-8', 'JSON in UTF-8')
  return body.toString('utf8')
}

function refuseBad(bad: BadStructure | null): void {
  if (bad !== null) refuse(bad.field, bad.seen, bad.accepted)
}

function parseChecked(text: string): unknown {
  const value = parseText(text)
  // Only an escape sequence can contain what PostgreSQL can't store, so most bodies need no second check.
  if (text.includes('\\u')) refuseUnstorable(value, '')
  return value
}

function parseText(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error
    // The parser's own message quotes the text, which may contain a secret. Report only the position.
    const position = /position (\d+)/.exec(error.message)?.[1]
    const seen = position === undefined ? 'text that is not JSON' : `text that is not JSON at position ${position}`
    return refuse('body', seen, 'a JSON document')
  }
}

function refuseUnstorable(value: unknown, path: string): void {
  if (typeof value === 'string') {
    if (value.includes('\0')) refuse(path, 'a NUL character', 'text without NUL')
    if (!value.isWellFormed()) refuse(path, 'half of a surrogate pair', 'Unicode text')
    return
  }
  if (Array.isArray(value)) {
    value.forEach((item: unknown, index) => {
      refuseUnstorable(item, `${path}[${String(index)}]`)
    })
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      refuseUnstorable(key, path === '' ? 'body' : path)
      refuseUnstorable(item, path === '' ? key : `${path}.${key}`)
    }
  }
}

function refuse(field: string, seen: string, accepted: string): never {
  throw refusalProblem({ code: 'invalid_request', field, seen, accepted })
}

export type BadStructure = { readonly field: string; readonly seen: string; readonly accepted: string }

/**
 * Finds the first structure in a JSON text that `JSON.parse` would accept but this API refuses. These are: nesting that
 * is too deep, an object with too many keys, a repeated key (the parser keeps only its last value), and `__proto__`.
 * Returns null if there is none. For a text that is not JSON, the result is arbitrary. The caller also calls
 * `JSON.parse`, which refuses such a text.
 */
export function findBadStructure(text: string): BadStructure | null {
  return checkStructure(text, { at: 0, open: [] }, text.length)
}

/** How far a text is checked. `open` has an entry for each open bracket: the keys of an object, or null for a list. */
type StructureCheck = { at: number; readonly open: (Keys | null)[] }

/** Goes on with a check, up to a position or a little further. */
function checkStructure(text: string, check: StructureCheck, until: number): BadStructure | null {
  const { open } = check
  const end = Math.min(until, text.length)
  let { at } = check
  while (at < end) {
    const mark = text.charCodeAt(at)
    if (mark === QUOTE) {
      const close = endOfString(text, at)
      const keys = open[open.length - 1]
      if (keys !== undefined && keys !== null && isKey(text, close)) {
        const bad = addKey(keys, text.slice(at, close))
        if (bad !== null) return bad
      }
      at = close
      continue
    }
    if (mark === OPEN_OBJECT || mark === OPEN_LIST) {
      if (open.length === DEPTH_MAX) {
        return {
          field: 'body',
          seen: `more than ${String(DEPTH_MAX)} levels`,
          accepted: `at most ${String(DEPTH_MAX)} levels of nesting`,
        }
      }
      open.push(mark === OPEN_OBJECT ? { few: [], many: null } : null)
    } else if (mark === CLOSE_OBJECT || mark === CLOSE_LIST) open.pop()
    at += 1
  }
  check.at = at
  return null
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COLON = 0x3a
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d
const OPEN_LIST = 0x5b
const CLOSE_LIST = 0x5d
const SPACE = 0x20

/**
 * The keys of one object. Up to `FEW` keys are stored in a list, because searching a short list is faster than a set
 * (2026-11).
 */
type Keys = { readonly few: string[]; many: Set<string> | null }
const FEW = 12

/** The position after the closing quote of the string that opens at `start`. */
function endOfString(text: string, start: number): number {
  let end = text.indexOf('"', start + 1)
  while (end !== -1 && isEscaped(text, end)) end = text.indexOf('"', end + 1)
  return end === -1 ? text.length : end + 1
}

function isEscaped(text: string, quote: number): boolean {
  let backslashes = 0
  while (text.charCodeAt(quote - 1 - backslashes) === BACKSLASH) backslashes += 1
  return backslashes % 2 === 1
}

function isKey(text: string, end: number): boolean {
  let next = end
  while (text.charCodeAt(next) <= SPACE) next += 1 // `JSON.parse` refuses control characters that are no white space
  return text.charCodeAt(next) === COLON
}

function addKey(keys: Keys, quoted: string): BadStructure | null {
  const key = quoted.includes('\\') ? unescape(quoted) : quoted.slice(1, -1)
  if (key === '__proto__') return { field: key, seen: 'a reserved key', accepted: 'other keys' }
  const { few, many } = keys
  if (many === null ? few.includes(key) : many.has(key))
    return { field: key, seen: 'a second value for one key', accepted: 'each key once' }
  if (many !== null) many.add(key)
  else if (few.push(key) > FEW) keys.many = new Set(few)
  if (many === null || many.size <= KEYS_MAX) return null
  const most = String(KEYS_MAX)
  return { field: 'body', seen: `an object of more than ${most} keys`, accepted: `at most ${most} keys in an object` }
}

function unescape(quoted: string): string {
  try {
    return String(JSON.parse(quoted))
  } catch {
    return quoted // not JSON, so `JSON.parse` refuses the whole text
  }
}
