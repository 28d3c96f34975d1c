import { NAME_MAX_BYTES, SLUG_MAX_CHARS, SLUG_MIN_CHARS } from '../requests/request-bounds.ts'

/** Describes a valid name of a sandbox, an organization or a key. */
export const NAME_RULE = `1 to ${String(NAME_MAX_BYTES)} bytes of UTF-8 without control characters`

/** Describes a valid slug. */
export const SLUG_RULE = `${String(SLUG_MIN_CHARS)} to ${String(SLUG_MAX_CHARS)} lowercase letters, digits and single hyphens, none at an end`

/** Describes a valid name of a worker: every host name is one. */
export const WORKER_NAME_RULE =
  '1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends'

/** The name of the worker inside `sandyard up`. No worker that joins may have it. */
export const LOCAL_WORKER_NAME = 'local'

const CONTROL_CHARACTER = /\p{Cc}/u
const SLUG_SHAPE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/
const WORKER_NAME_SHAPE = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/

/** Whether a text can be the name of a worker that joins. */
export function isWorkerName(text: string): boolean {
  return WORKER_NAME_SHAPE.test(text) && text !== LOCAL_WORKER_NAME
}

/** Whether a text can be the name of a sandbox, an organization or a key. */
export function isName(text: string): boolean {
  return text !== '' && byteLength(text) <= NAME_MAX_BYTES && isPlainText(text)
}

/** Whether a text can be a slug. */
export function isSlug(text: string): boolean {
  return text.length >= SLUG_MIN_CHARS && text.length <= SLUG_MAX_CHARS && SLUG_SHAPE.test(text)
}

/** Whether a text has no control character and no half of a surrogate pair. */
export function isPlainText(text: string): boolean {
  return text.isWellFormed() && !CONTROL_CHARACTER.test(text)
}

/** The length of a text in bytes of UTF-8. */
export function byteLength(text: string): number {
  return Buffer.byteLength(text, 'utf8')
}
