import { NAME_MAX_BYTES, SLUG_MAX_CHARS, SLUG_MIN_CHARS } from './requests/request-bounds.ts'

/** Describes a valid name of a sandbox, an organization or a key. */
export const NAME_RULE = `1 to ${String(NAME_MAX_BYTES)} bytes of UTF-8 without control characters`

/** Describes a valid slug. */
export const SLUG_RULE = `${String(SLUG_MIN_CHARS)} to ${String(SLUG_MAX_CHARS)} lowercase letters, digits and single hyphens, none at an end`

const CONTROL_CHARACTER = /\p{Cc}/u
const SLUG_SHAPE = /^[a-z0-9]+(?:-[a-z0-9]+)*$/

/** Whether a text is a valid name of a sandbox, an organization or a key. */
export function isName(text: string): boolean {
  return text !== '' && byteLength(text) <= NAME_MAX_BYTES && isPlainText(text)
}

/** Whether a text is a valid slug. */
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

/** A random whole number in `[0, below)`. */
export type RandomBelow = (below: number) => number

/**
 * Generates a random slug such as `amber-harbor-k3f9`, from 36 adjectives, 36 nouns and 1.7 million endings. If a
 * sandbox already has the slug, the unique index refuses it, and the caller generates another.
 */
export function generateSlug(draw: RandomBelow): string {
  const ending = draw(ENDING_BASE ** ENDING_CHARS).toString(ENDING_BASE)
  return `${pick(ADJECTIVES, draw)}-${pick(NOUNS, draw)}-${ending.padStart(ENDING_CHARS, '0')}`
}

/** Makes a slug from the ASCII letters and digits of a name. Returns null if the name has too few of them. */
export function slugFromName(name: string): string | null {
  const words = name.toLowerCase().match(/[a-z0-9]+/g) ?? []
  const slug = words.join('-').slice(0, SLUG_MAX_CHARS).replace(/-$/, '')
  return isSlug(slug) ? slug : null
}

const ENDING_CHARS = 4
/** Digits and lowercase letters. */
const ENDING_BASE = 36

const ADJECTIVES = [
  'amber', 'ample', 'brave', 'brisk', 'calm', 'clear', 'coral', 'cosy', 'crisp', 'dapper', 'deft', 'eager',
  'early', 'fair', 'fleet', 'gentle', 'glad', 'golden', 'hardy', 'keen', 'kind', 'lively', 'lucid', 'mellow',
  'mild', 'neat', 'noble', 'patient', 'plain', 'quick', 'quiet', 'royal', 'solid', 'sunny', 'swift', 'warm',
] // prettier-ignore

const NOUNS = [
  'acorn', 'anchor', 'beacon', 'birch', 'brook', 'canyon', 'cedar', 'cliff', 'comet', 'copper', 'delta', 'dune',
  'ember', 'fern', 'fjord', 'garden', 'glade', 'harbor', 'heron', 'island', 'lagoon', 'lantern', 'maple', 'meadow',
  'orchard', 'otter', 'pebble', 'pine', 'prairie', 'quarry', 'reef', 'river', 'sparrow', 'summit', 'valley', 'willow',
] // prettier-ignore

function pick(words: readonly string[], draw: RandomBelow): string {
  const word = words[draw(words.length)]
  if (word === undefined) throw new Error('a random number is outside its range')
  return word
}
