/**
 * `JSON.parse` of Node 24 and 26 may return another key than the text has (nodejs/node#63785). It compares a key that has an escape
 * sequence with the key that followed in an earlier object, before it decodes it. After `{"a":1,"b\\r":1}`, the keys of
 * `{"a":1,"b\rc":1}` are `a` and `b\r` with a backslash. So one organization could change the labels of another one.
 */

const QUOTE = '"'
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

/** The position after the closing quote of the string that opens at `start`. */
export function endOfString(text: string, start: number): number {
  let end = text.indexOf(QUOTE, start + 1)
  while (end !== -1 && isEscaped(text, end)) end = text.indexOf(QUOTE, end + 1)
  return end === -1 ? text.length : end + 1
}

function isEscaped(text: string, quote: number): boolean {
  let backslashes = 0
  while (text.charCodeAt(quote - 1 - backslashes) === BACKSLASH) backslashes += 1
  return backslashes % 2 === 1
}

/** Whether the string that ends at `end` is a key. */
export function isKey(text: string, end: number): boolean {
  let next = end
  while (text.charCodeAt(next) <= SPACE) next += 1 // `JSON.parse` refuses control characters that are no white space
  return text.charCodeAt(next) === COLON
}
