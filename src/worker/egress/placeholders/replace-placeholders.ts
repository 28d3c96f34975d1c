import type { RunSecret } from '../../../domain/spec/secrets.ts'
import type { PlaceholderIndex } from './placeholder-index.ts'
import { RequestRefused } from '../request-refused.ts'

/** Puts values in place of placeholders in Latin-1 text. */

/**
 * How many bytes a text may grow by. A value may be 65,536 times as long as its placeholder, and 8,000 of them in one header field
 * ended the process, because its memory was used up.
 */
const MAX_GROWTH = 1024 * 1024

/** Replaces the placeholders of those secrets that are wanted. Absent: of all. */
export type Replacer = (text: string, isWanted?: (secret: RunSecret) => boolean) => string

/** Replaces all placeholders at once, so that no value is searched for the placeholder of another secret. */
export function makeReplacer(secrets: readonly RunSecret[], index: PlaceholderIndex): Replacer {
  if (secrets.length === 0) return (text) => text
  const find = makeFinder(secrets, index)
  return (text, isWanted = () => true) => putIn(text, find(text, isWanted))
}

/** Replaces placeholders in a body that arrives in parts. It holds back an end that may be the begin of a placeholder. */
export function makeReplacement(
  secrets: readonly RunSecret[],
  index: PlaceholderIndex,
): { readonly push: (bytes: Buffer) => Buffer; readonly end: () => Buffer } {
  const find = makeFinder(secrets, index)
  let held = ''
  return {
    push(bytes) {
      const text = held + bytes.toString('latin1')
      const found = find(text, () => true)
      const end = endOfFinal(text, found, index.beginsAtEnd(text))
      held = text.slice(end)
      const final = found.filter(({ start }) => start < end)
      return Buffer.from(putIn(text.slice(0, end), final), 'latin1')
    },
    end() {
      const rest = Buffer.from(
        putIn(
          held,
          find(held, () => true),
        ),
        'latin1',
      )
      held = ''
      return rest
    },
  }
}

/** A placeholder in a text, from `start` to before `end`, with the value that takes its place. */
type Found = { readonly start: number; readonly end: number; readonly value: string }

/** Finds placeholders from left to right, at each place the longest. None overlaps another one. */
type Finder = (text: string, isWanted: (secret: RunSecret) => boolean) => readonly Found[]

function makeFinder(secrets: readonly RunSecret[], index: PlaceholderIndex): Finder {
  const byPlaceholder = new Map(secrets.map((secret) => [secret.placeholder, secret]))
  const numbered = index.placeholders.map((placeholder) => byPlaceholder.get(placeholder))
  return (text, isWanted) => {
    const places: Found[] = [] // from right to left
    const isWantedAt = (nth: number): boolean => {
      const secret = numbered[nth]
      return secret !== undefined && isWanted(secret)
    }
    index.search(text, isWantedAt, (nth, start) => {
      const secret = numbered[nth]
      if (secret !== undefined) places.push({ start, end: start + secret.placeholder.length, value: secret.value })
      return true
    })
    const found: Found[] = []
    for (const place of places.toReversed()) if (place.start >= (found.at(-1)?.end ?? 0)) found.push(place)
    return found
  }
}

/** Where the longest end begins with which a placeholder may begin. A begin inside a found one is none. */
function endOfFinal(text: string, found: readonly Found[], begins: Iterable<number>): number {
  let nth = 0
  for (const length of begins) {
    const start = text.length - length
    while ((found[nth]?.end ?? Infinity) <= start) nth += 1
    if ((found[nth]?.start ?? Infinity) >= start) return start
  }
  return text.length
}

/** Throws `RequestRefused` if the values are too long together. */
function putIn(text: string, found: readonly Found[]): string {
  const growth = found.reduce((sum, { start, end, value }) => sum + value.length - (end - start), 0)
  if (growth > MAX_GROWTH) throw new RequestRefused('values that are too long together')
  let [replaced, from] = ['', 0]
  for (const { start, end, value } of found) {
    replaced += text.slice(from, start) + value
    from = end
  }
  return replaced + text.slice(from)
}
