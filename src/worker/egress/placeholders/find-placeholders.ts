import type { HostSecrets } from './host-secrets.ts'
import type { Violation } from '../request-refused.ts'

/** The longest form of a character, `\uXXXX`. */
const ESCAPE_LENGTH = 6
const STRICTEST_FIRST = ['block_and_terminate', 'block_and_log', 'block'] as const

/**
 * Finds a forbidden placeholder in Latin-1 text. Of several, that with the strictest action is returned. The first `settled` characters are
 * there for what begins in them: a forbidden placeholder that does was found before.
 */
export type ViolationFinder = (text: string, location: Violation['location'], settled?: number) => Violation | null

/** Creates a finder. A placeholder inside a longer one that is tolerated is no violation. */
export function makeViolationFinder({ forbidden, tolerated, index }: HostSecrets): ViolationFinder {
  if (forbidden.length === 0) return () => null
  const { placeholders } = index
  const isForbidden = markAmong(placeholders, new Set(forbidden.map(({ placeholder }) => placeholder)))
  const isTolerated = markAmong(placeholders, new Set(tolerated))
  const endOf = (nth: number, start: number): number => start + (placeholders[nth]?.length ?? 0)

  /** For each place, how far a tolerated placeholder reaches that begins there or before. */
  const findTolerated = (text: string): Int32Array => {
    const reach = new Int32Array(text.length)
    const isWanted = (nth: number): boolean => isTolerated[nth] === true
    index.search(text, isWanted, (nth, start) => {
      reach[start] = endOf(nth, start)
      return true
    })
    for (let at = 1; at < reach.length; at += 1) reach[at] = Math.max(reach[at] ?? 0, reach[at - 1] ?? 0)
    return reach
  }

  const findAll = (text: string, settled: number): ReadonlySet<string> => {
    const found = new Set<string>()
    const isWanted = (nth: number): boolean => isForbidden[nth] === true && !found.has(placeholders[nth] ?? '')
    let reach: Int32Array | null = null
    index.search(text, isWanted, (nth, start) => {
      if (start < settled) return true
      if (tolerated.length > 0) reach ??= findTolerated(text)
      if ((reach?.[start] ?? 0) >= endOf(nth, start)) return true // and so are shorter ones
      found.add(placeholders[nth] ?? '')
      return false
    })
    return found
  }

  return (text, location, settled = 0) => {
    const found = formsOf(text).flatMap(([form, shown]) => {
      const placeholders = findAll(shown, settled)
      if (placeholders.size === 0) return [] // a head has thousands of texts
      return forbidden
        .filter(({ placeholder }) => placeholders.has(placeholder))
        .map(({ env_var, placeholder, violation_action: { type } }) => ({
          action: type,
          env_var,
          placeholder: Buffer.from(placeholder, 'latin1').toString(),
          location,
          form,
        }))
    })
    for (const action of STRICTEST_FIRST) {
      const hit = found.find((violation) => violation.action === action)
      if (hit !== undefined) return hit
    }
    return null
  }
}

function markAmong(all: readonly string[], marked: ReadonlySet<string>): readonly boolean[] {
  return all.map((one) => marked.has(one))
}

/**
 * Searches a location that arrives in parts. It keeps the end of what it saw, in case a placeholder was split. Before that, it keeps what a
 * tolerated one takes, because a forbidden one may be its end.
 */
export function makeSearch(secrets: HostSecrets, location: Violation['location']): (bytes: Buffer) => Violation | null {
  if (secrets.forbidden.length === 0) return () => null
  const find = makeViolationFinder(secrets)
  const longest = Math.max(...secrets.forbidden.map(({ placeholder }) => placeholder.length))
  const longestTolerated = Math.max(0, ...secrets.tolerated.map(({ length }) => length))
  const kept = (longest + longestTolerated) * ESCAPE_LENGTH
  let tail = ''
  let isCut = false
  return (bytes) => {
    const text = tail + bytes.toString('latin1')
    const found = find(text, location, isCut ? longestTolerated : 0)
    isCut ||= text.length > kept
    tail = text.slice(beginOfTail(text, kept))
    return found
  }
}

/** Where the end that is kept begins. An escape is kept as a whole, because what follows would else lie elsewhere once it is decoded. */
function beginOfTail(text: string, kept: number): number {
  const begin = Math.max(0, text.length - kept)
  const first = Math.max(0, begin - ESCAPE_LENGTH + 1)
  const before = text.slice(first, begin)
  const escape = Math.max(before.lastIndexOf('%'), before.lastIndexOf('\\'))
  return escape === -1 ? begin : first + escape
}

type Form = Violation['form']

function formsOf(text: string): readonly (readonly [Form, string])[] {
  const forms: [Form, string][] = [['raw', text]]
  if (/%[\da-f]{2}/i.test(text))
    forms.push(['percent_encoded', text.replace(/%([\da-f]{2})/gi, (_, hex: string) => fromCode(hex))])
  if (/\\u[\da-f]{4}/i.test(text))
    forms.push(['unicode_escaped', text.replace(/(?:\\u[\da-f]{4})+/gi, unescapeUnicode)])
  return forms
}

function unescapeUnicode(escapes: string): string {
  const text = escapes.replace(/\\u([\da-f]{4})/gi, (_, hex: string) => fromCode(hex))
  return Buffer.from(text).toString('latin1')
}

function fromCode(hex: string): string {
  return String.fromCharCode(Number.parseInt(hex, 16))
}
