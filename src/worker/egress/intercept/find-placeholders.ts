import type { HostSecrets } from './host-secrets.ts'
import type { Violation } from './request-refused.ts'

/** The longest form of a character, `\uXXXX`. */
const ESCAPE_LENGTH = 6
const STRICTEST_FIRST = ['block_and_terminate', 'block_and_log', 'block'] as const

/** Finds forbidden placeholders in Latin-1 text. Of several hits, that with the strictest action is returned. */
export function findViolation(
  text: string,
  { forbidden, tolerated }: HostSecrets,
  location: Violation['location'],
): Violation | null {
  if (forbidden.length === 0) return null
  const found = formsOf(text).flatMap(([form, shown]) =>
    forbidden
      .filter(({ placeholder }) => contains(shown, placeholder, tolerated))
      .map(({ env_var, placeholder, violation_action: { type } }) => ({
        action: type,
        env_var,
        placeholder: Buffer.from(placeholder, 'latin1').toString(),
        location,
        form,
      })),
  )
  for (const action of STRICTEST_FIRST) {
    const hit = found.find((violation) => violation.action === action)
    if (hit !== undefined) return hit
  }
  return null
}

/** Searches a location that arrives in parts. It keeps the end of what it saw, in case a placeholder was split. */
export function makeSearch(secrets: HostSecrets, location: Violation['location']): (bytes: Buffer) => Violation | null {
  if (secrets.forbidden.length === 0) return () => null
  const longest = Math.max(...secrets.forbidden.map(({ placeholder }) => placeholder.length))
  let tail = ''
  return (bytes) => {
    const text = tail + bytes.toString('latin1')
    tail = text.slice(-(longest * ESCAPE_LENGTH))
    return findViolation(text, secrets, location)
  }
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

function contains(text: string, placeholder: string, tolerated: readonly string[]): boolean {
  if (!text.includes(placeholder)) return false
  const longer = tolerated.filter((other) => other.includes(placeholder))
  return longer.reduce((rest, other) => rest.replaceAll(other, '\0'), text).includes(placeholder)
}
