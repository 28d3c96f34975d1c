/** The deepest nesting of lists and objects in a body; the contract's own shapes stay below 10. */
export const DEPTH_MAX = 32

/** The most keys of one object; the largest of the contract has 256. Each costs a look into a set, however short it is. */
export const KEYS_MAX = 4096

export type BadStructure = { readonly field: string; readonly seen: string; readonly accepted: string }

/**
 * The first thing about a JSON text that `JSON.parse` would let pass: nesting that is too deep, an object of too many
 * keys, a key that stands twice in one object (the parser keeps the last without a word), or `__proto__`. Null for a text without them. A text that is not
 * JSON gives any answer; the parser refuses it.
 */
export function findBadStructure(text: string): BadStructure | null {
  // One entry for each open bracket: the keys of an object, null for a list.
  const open: (Keys | null)[] = []
  let at = 0
  while (at < text.length) {
    const mark = text.charCodeAt(at)
    if (mark === QUOTE) {
      const end = endOfString(text, at)
      const keys = open[open.length - 1]
      if (keys !== undefined && keys !== null && isKey(text, end)) {
        const bad = addKey(keys, text.slice(at, end))
        if (bad !== null) return bad
      }
      at = end
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

/** The keys of an object: of most a few, among which a look at each is quicker than a set (2026-11). */
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
  while (text.charCodeAt(next) <= SPACE) next += 1 // of what is no space, the parser says so
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
    return quoted // not JSON: the parser says so
  }
}
