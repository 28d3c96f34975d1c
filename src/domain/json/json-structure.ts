/** The structure of a JSON text that `JSON.parse` would accept but this API refuses. */

import { decodeString, endOfEscape, endOfString, isKey } from '../exact-json.ts'

/** The deepest nesting of lists and objects in a body. The API's own schemas are less than 10 deep. */
export const DEPTH_MAX = 32

/**
 * The maximum number of keys of one object. The largest object of the API has 256. The number is limited because each
 * key, however short, costs a lookup in a set.
 */
export const KEYS_MAX = 4096

/** The longest key, in characters. The API's own have at most 255 bytes. A key is decoded in one turn of the event loop. */
const KEY_MAX_CHARS = 65_536

export type BadStructure = { readonly field: string; readonly seen: string; readonly accepted: string }

/** What a check meets, from the start of the text to its end. Positions are those of the characters. */
export type StructureListener = {
  /** A list or an object opens. `keyAt` is the start of the latest key: its own key, if it is a member of an object. */
  readonly onOpen: (at: number, isList: boolean, keyAt: number) => void
  /** A comma follows at `commasFrom` or later, which changes only while one of these is called. */
  readonly onComma: (at: number) => void
  readonly commasFrom: number
  readonly onClose: (at: number) => void
  /** A string of more than `longStringChars` opens that is no key. Its parts follow, which span no escape sequence, and its end. */
  readonly onLongString: (at: number, keyAt: number) => void
  readonly onStringPart: (from: number, to: number) => void
  readonly onStringEnd: (end: number) => void
  readonly longStringChars: number
}

/**
 * How far a text is checked. `open` has an entry for each open bracket: the keys of an object, or null for a list.
 * `quoteAt` is where the long string ends that the check is within, or null.
 */
export type StructureCheck = { at: number; keyAt: number; quoteAt: number | null; readonly open: (Keys | null)[] }

/** A check that is at the start of a text. */
export function beginCheck(): StructureCheck {
  return { at: 0, keyAt: 0, quoteAt: null, open: [] }
}

/**
 * Finds the first structure in a JSON text that `JSON.parse` would accept but this API refuses. These are: nesting that
 * is too deep, an object with too many keys, a repeated key (the parser keeps only its last value), and `__proto__`.
 * Returns null if there is none. For a text that is not JSON, the result is arbitrary. The caller also calls
 * `JSON.parse`, which refuses such a text.
 */
export function findBadStructure(text: string): BadStructure | null {
  return checkStructure(text, beginCheck(), text.length)
}

/** Goes on with a check, up to a position or a little further. */
export function checkStructure(
  text: string,
  check: StructureCheck,
  until: number,
  listener: StructureListener | null = null,
): BadStructure | null {
  const { open } = check
  const end = Math.min(until, text.length)
  let { at } = check
  while (at < end) {
    if (check.quoteAt !== null && listener !== null) {
      const to = Math.min(check.quoteAt, endOfEscape(text, at, end))
      listener.onStringPart(at, to)
      at = to
      if (to === check.quoteAt) {
        at += 1
        check.quoteAt = null
        listener.onStringEnd(at)
      }
      continue
    }
    const mark = text.charCodeAt(at)
    if (mark === QUOTE) {
      const close = endOfString(text, at)
      const keys = open[open.length - 1]
      if (keys !== undefined && keys !== null && isKey(text, close)) {
        const bad = addKey(keys, text.slice(at, close))
        if (bad !== null) return bad
        check.keyAt = at
      } else if (listener !== null && close - at > listener.longStringChars) {
        if (close > text.length) return notJson(text.length)
        listener.onLongString(at, check.keyAt)
        check.quoteAt = close - 1
        at += 1
        continue
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
      listener?.onOpen(at, mark === OPEN_LIST, check.keyAt)
    } else if (mark === CLOSE_OBJECT || mark === CLOSE_LIST) {
      open.pop()
      listener?.onClose(at)
    } else if (mark === COMMA && listener !== null && at >= listener.commasFrom) listener.onComma(at)
    at += 1
  }
  check.at = at
  return null
}

/** As `parseText` refuses it. */
function notJson(at: number): BadStructure {
  return { field: 'body', seen: `text that is not JSON at position ${String(at)}`, accepted: 'a JSON document' }
}

const QUOTE = 0x22
const COMMA = 0x2c
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d
const OPEN_LIST = 0x5b
const CLOSE_LIST = 0x5d

/**
 * The keys of one object. Up to `FEW` keys are stored in a list, because searching a short list is faster than a set
 * (2026-11).
 */
type Keys = { readonly few: string[]; many: Set<string> | null }
const FEW = 12

function addKey(keys: Keys, quoted: string): BadStructure | null {
  if (quoted.length > KEY_MAX_CHARS)
    return { field: 'body', seen: 'a very long key', accepted: `keys of at most ${String(KEY_MAX_CHARS)} characters` }
  const key = quoted.includes('\\') ? decodeString(quoted) : quoted.slice(1, -1)
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
