import { ByteList, parseBytes } from '../byte-lists.ts'
import { decodeString, endOfString } from '../exact-json.ts'
import type { StructureListener } from './json-structure.ts'
import { formatPath, mayBeUnstorable, parseText, refuse, requireStorable, type JsonPath } from './json-values.ts'

/**
 * A large JSON text is parsed in pieces, while its structure is checked. A piece is a run of items of one list, or of
 * members of one object. `JSON.parse` parses it between brackets, so the pieces are JSON exactly if the text is. A list
 * or an object that is shorter than a piece is parsed with its parent's items. The others are begun: each piece adds to
 * them. A string longer than a piece is parsed in parts.
 */
export type JsonPieces = StructureListener & {
  /** Parses what is left once the check has ended. Returns the value of the whole text. */
  readonly finish: () => unknown
}

/** A list or an object whose closing bracket was not met yet. */
type Opening = { readonly isList: boolean; readonly at: number; readonly keyAt: number }

type Begun = {
  readonly path: JsonPath
  /** What is parsed of it. */
  readonly content: ListContent | ObjectContent
  /** Where the items start that are not parsed yet. */
  from: number
  /** Whether items come before them. They start with a comma then. */
  hasItems: boolean
}

type ObjectContent = { readonly isList: false; readonly members: Record<string, unknown> }

/** As long as all items are bytes, they are in `bytes`. */
type ListContent = { readonly isList: true; readonly items: unknown[]; bytes: Uint8Array[] | null; length: number }

/** The most items of a list that has anything but bytes. The longest one that the API accepts has 4,096. */
export const ITEMS_MAX = 65_536

/**
 * The key of a member that stands for those of other pieces. The check of the structure has refused a text with this key, and
 * `JSON.parse` takes it as any other.
 */
const OTHER = '__proto__'

/** What follows a run of items: the closing bracket, which is a part of the run, a comma, or a list or an object that is begun. */
type Next = 'bracket' | 'comma' | 'begun'

/** Makes the pieces of a text, of `pieceChars` or more. Its functions throw `invalid_request` for a text that is not JSON. */
export function makeJsonPieces(text: string, pieceChars: number): JsonPieces {
  const open: Opening[] = []
  /** The outermost ones of `open`. */
  const begun: Begun[] = []
  /** The long string that the check is within. */
  let string: { readonly path: JsonPath; value: string; mayBeUnstorable: boolean } | null = null
  let root: { readonly value: unknown; readonly end: number } | null = null
  /** Where the items of the innermost one start that are not parsed yet. There may be a comma for each of two million bytes. */
  let unparsedFrom = 0

  function findUnparsed(): void {
    unparsedFrom = (begun.length < open.length ? open.at(-1)?.at : begun.at(-1)?.from) ?? text.length
  }

  function beginAll(): void {
    for (const { isList, at, keyAt } of open.slice(begun.length)) {
      const path = beginItem(at, keyAt)
      const content: Begun['content'] = isList ? { isList, items: [], bytes: [], length: 0 } : { isList, members: {} }
      begun.push({ path, content, from: at + 1, hasItems: false })
    }
  }

  /** Parses what comes before a value that is not parsed with its parent's items. Returns the path of the value. */
  function beginItem(at: number, keyAt: number): JsonPath {
    const parent = begun.at(-1)
    if (parent === undefined) {
      parseText(`${text.slice(0, at)}null`) // white space comes before it
      return []
    }
    parseItems(parent, at, 'begun')
    const step = parent.content.isList
      ? parent.content.length
      : decodeString(text.slice(keyAt, endOfString(text, keyAt)))
    return [...parent.path, step]
  }

  function endItem(value: unknown, path: JsonPath, end: number): void {
    const parent = begun.at(-1)
    if (parent === undefined) root = { value, end }
    else {
      parent.from = end
      if (parent.content.isList) addItems(parent.content, [value], parent.path)
      else parent.content.members[String(path.at(-1))] = value
    }
    findUnparsed()
  }

  function refuseSecond(at: number): void {
    if (root !== null) parseText(`null${text.slice(root.end, at + 1)}`, root.end - 4)
  }

  function parseItems(of: Begun, end: number, next: Next): void {
    const { content, path, from, hasItems } = of
    const bytes = content.isList && content.bytes !== null ? parseByteItems(of, end, next) : null
    if (content.isList && bytes !== null) {
      content.bytes?.push(bytes)
      content.length += bytes.length
      of.from = end
      of.hasItems = true
      return
    }
    const other = content.isList ? 'null' : `"${OTHER}":null`
    const before = `${content.isList ? '[' : '{'}${hasItems ? other : ''}`
    const bracket = content.isList ? ']' : '}'
    const after = { bracket: '', comma: `,${other}${bracket}`, begun: `null${bracket}` }[next]
    const run = text.slice(from, end)
    const parsed = parseText(`${before}${run}${after}`, from - before.length)
    of.from = end
    of.hasItems = true
    if (content.isList) {
      const all: readonly unknown[] = Array.isArray(parsed) ? parsed : []
      const items = all.slice(hasItems ? 1 : 0, next === 'bracket' ? undefined : -1)
      if (mayBeUnstorable(run)) requireStorable(items, path, content.length)
      addItems(content, items, path)
    } else {
      const { [OTHER]: _, ...members } = Object(parsed)
      if (mayBeUnstorable(run)) requireStorable(members, path)
      Object.assign(content.members, members)
    }
  }

  /** Items that are nothing but bytes, which most long lists have. Null: they are something else. */
  function parseByteItems({ from, hasItems }: Begun, end: number, next: Next): Uint8Array | null {
    if (next === 'begun' || (hasItems && text[from] !== ',')) return null
    if (next === 'bracket' && text[end - 1] !== ']') return null
    return parseBytes(text, hasItems ? from + 1 : from, next === 'bracket' ? end - 1 : end)
  }

  return {
    get commasFrom() {
      return unparsedFrom + pieceChars
    },
    onOpen(at, isList, keyAt) {
      refuseSecond(at)
      open.push({ at, isList, keyAt })
      unparsedFrom = at
    },
    onComma(at) {
      beginAll()
      const innermost = begun.at(-1)
      if (innermost !== undefined) parseItems(innermost, at, 'comma')
      findUnparsed()
    },
    onClose(at) {
      const ended = open.length === begun.length ? begun.pop() : undefined
      open.pop()
      if (ended === undefined) {
        findUnparsed()
        return
      }
      parseItems(ended, at + 1, 'bracket')
      endItem(valueOf(ended.content), ended.path, at + 1)
    },
    longStringChars: pieceChars,
    onLongString(at, keyAt) {
      refuseSecond(at)
      beginAll()
      string = { path: beginItem(at, keyAt), value: '', mayBeUnstorable: false }
    },
    onStringPart(from, to) {
      if (string === null) return
      const part = text.slice(from, to)
      string.value += String(parseText(`"${part}"`, from - 1))
      string.mayBeUnstorable ||= mayBeUnstorable(part)
    },
    onStringEnd(end) {
      if (string === null) return
      const { path, value } = string
      if (string.mayBeUnstorable) requireStorable(value, path)
      string = null
      endItem(value, path, end)
    },
    finish() {
      const innermost = begun.at(-1)
      if (innermost !== undefined) parseItems(innermost, text.length, 'bracket') // throws, because the bracket is missing
      if (root !== null) {
        parseText(`null${text.slice(root.end)}`, root.end - 4) // white space comes after it
        return root.value
      }
      const value = parseText(text)
      if (mayBeUnstorable(text)) requireStorable(value, [])
      return value
    },
  }
}

function addItems(to: ListContent, items: readonly unknown[], path: JsonPath): void {
  to.length += items.length
  if (to.length > ITEMS_MAX)
    refuse(formatPath(path), `a list of more than ${String(ITEMS_MAX)} items`, `at most ${String(ITEMS_MAX)}, or bytes`)
  for (const bytes of to.bytes ?? []) to.items.push(...bytes)
  to.bytes = null
  for (const item of items) to.items.push(item)
}

function valueOf(content: Begun['content']): unknown {
  if (!content.isList) return content.members
  return content.bytes === null ? content.items : new ByteList(Buffer.concat(content.bytes))
}
