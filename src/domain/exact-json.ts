/**
 * `JSON.parse` of Node 24 and 26 may return another key than the text has (nodejs/node#63785). It compares a key that has an escape
 * sequence with the key that followed in an earlier object, before it decodes it. After `{"a":1,"b\\r":1}`, the keys of
 * `{"a":1,"b\rc":1}` are `a` and `b\r` with a backslash. So one organization could change the labels of another one.
 */

const QUOTE = '"'
const QUOTE_CODE = 0x22
const BACKSLASH = 0x5c
const COLON = 0x3a
const SPACE = 0x20

/** With what a key starts that stands for one with an escape sequence. Such keys of the text itself are replaced too. */
const MARK = 'escaped key '

/** `JSON.parse`, but each key is the text's. */
export function parseJsonText(text: string): unknown {
  if (!text.includes('\\')) return JSON.parse(text)
  try {
    const { replaced, keys } = replaceKeys(text)
    if (keys.length > 0) return restoreKeys(JSON.parse(replaced), keys)
  } catch {
    // The text is not JSON. The error below has the position in it.
  }
  return JSON.parse(text)
}

/** Replaces each key that has an escape sequence by one that has none. If the text is not JSON, neither is the result, or this throws. */
function replaceKeys(text: string): { readonly replaced: string; readonly keys: readonly string[] } {
  const keys: string[] = []
  let [replaced, from] = ['', 0]
  for (let at = text.indexOf(QUOTE); at !== -1;) {
    const end = endOfString(text, at)
    const quoted = text.slice(at, end)
    if ((quoted.includes('\\') || quoted.startsWith(MARK, 1)) && isKey(text, end)) {
      replaced += `${text.slice(from, at)}"${MARK}${String(keys.length)}"`
      keys.push(String(JSON.parse(quoted)))
      from = end
    }
    at = text.indexOf(QUOTE, end)
  }
  return { replaced: replaced + text.slice(from), keys }
}

function restoreKeys(value: unknown, keys: readonly string[]): unknown {
  if (Array.isArray(value)) return value.map((item: unknown) => restoreKeys(item, keys))
  if (typeof value !== 'object' || value === null) return value
  const keyOf = (key: string): string => (key.startsWith(MARK) ? (keys[Number(key.slice(MARK.length))] ?? key) : key)
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [keyOf(key), restoreKeys(item, keys)]))
}

/** The text of a JSON string with its quotes. If it is none, it is returned as it is. */
export function decodeString(quoted: string): string {
  try {
    return String(JSON.parse(quoted))
  } catch {
    return quoted
  }
}

/** How many characters after an escaped quote are looked at one by one. */
const NEAR_CHARS = 32

/**
 * The position after the closing quote of the string that opens at `start`. Beyond the text: none closes it. An escaped
 * quote is often followed by others: to search each of two million took 45 ms (2026-11).
 */
export function endOfString(text: string, start: number): number {
  for (let at = start + 1; ;) {
    const quote = text.indexOf(QUOTE, at)
    if (quote === -1) return text.length + 1
    if (!isEscaped(text, at, quote)) return quote + 1
    at = quote + 1
    for (const near = at + NEAR_CHARS; at < near; at += 1) {
      const mark = text.charCodeAt(at)
      if (mark === QUOTE_CODE) return at + 1
      if (mark === BACKSLASH) at += 1
    }
  }
}

/** The first position from `at` on that is within no escape sequence of a string. `from` is an earlier one. */
export function endOfEscape(text: string, from: number, at: number): number {
  const latest = Math.max(from, at - ESCAPE_MAX_CHARS + 1)
  const backslash = latest + text.slice(latest, at).lastIndexOf('\\')
  if (backslash < latest || isEscaped(text, from, backslash)) return at
  return Math.max(at, backslash + (text[backslash + 1] === 'u' ? ESCAPE_MAX_CHARS : 2))
}

/** The characters of the longest escape sequence, such as `\u00e4`. */
const ESCAPE_MAX_CHARS = 6

/** Whether an odd number of backslashes comes before a position, none of them before `from`. */
function isEscaped(text: string, from: number, at: number): boolean {
  let first = at
  while (first > from && text.charCodeAt(first - 1) === BACKSLASH) first -= 1
  return (at - first) % 2 === 1
}

/** Whether the string that ends at `end` is a key. */
export function isKey(text: string, end: number): boolean {
  let next = end
  while (text.charCodeAt(next) <= SPACE) next += 1 // `JSON.parse` refuses control characters that are no white space
  return text.charCodeAt(next) === COLON
}
