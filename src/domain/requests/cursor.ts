import { describeSeen, refusalProblem } from '../refusal.ts'

/** The lists with pages. A cursor is valid only for its own list. */
export type CursorList =
  | 'sandboxes'
  | 'events'
  | 'members'
  | 'api_keys'
  | 'registry_credentials'
  | 'snapshots'
  | 'ssh_keys'
  | 'previews'
  | 'webhooks'
  | 'webhook_deliveries'
  | 'organizations'
  | 'workers'
  | 'usage_by_sandbox'

/**
 * The version of the format. Raise it when the meaning of `after` changes, so that old cursors are refused instead of
 * misread.
 */
const CURSOR_VERSION = 1

const UUID_SHAPE = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** The lists whose position is a UTC day and an id, such as `2028-02-29 <uuid>`. All others are ordered by id. */
const LISTS_BY_DAY: readonly CursorList[] = ['usage_by_sandbox']

/** The opaque cursor of the page after the row with the position `after`. */
export function encodeCursor(list: CursorList, after: string): string {
  return Buffer.from(JSON.stringify({ v: CURSOR_VERSION, list, after })).toString('base64url')
}

/** The position in a cursor. Throws `invalid_request` for anything but a cursor of this list. */
export function decodeCursor(list: CursorList, text: string): string {
  const after = readCursor(list, text)
  if (after !== null) return after
  const accepted = `a next_cursor of the list of ${list}`
  throw refusalProblem({ code: 'invalid_request', field: 'query.cursor', seen: describeSeen(text), accepted })
}

function readCursor(list: CursorList, text: string): string | null {
  const held = parseJson(Buffer.from(text, 'base64url').toString('utf8'))
  if (typeof held !== 'object' || held === null) return null
  if (!('v' in held) || held.v !== CURSOR_VERSION || !('list' in held) || held.list !== list) return null
  return 'after' in held && typeof held.after === 'string' && isPosition(list, held.after) ? held.after : null
}

function isPosition(list: CursorList, after: string): boolean {
  if (!LISTS_BY_DAY.includes(list)) return UUID_SHAPE.test(after)
  const [day = '', id = '', ...rest] = after.split(' ')
  return rest.length === 0 && UUID_SHAPE.test(id) && isDay(day)
}

function isDay(text: string): boolean {
  const at = new Date(/^\d{4}-\d{2}-\d{2}$/.test(text) ? text : NaN)
  return !Number.isNaN(at.getTime()) && at.toISOString().startsWith(text) // a 31st of February would be in March
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null // not JSON: not a cursor
  }
}
