import { ByteList } from './byte-lists.ts'
import { Problem, PROBLEMS } from './problem.ts'

/**
 * Why a request can't be served, as a value: the field, the value that was found, and the accepted values. `seen` is
 * null if the value may be a secret or is not informative.
 */
export type Refusal = {
  readonly code: 'invalid_request' | 'invalid_sandbox_config'
  /** The path of the field, such as `network.policy.rules[0].action` or `query.limit`. */
  readonly field: string
  readonly seen: string | null
  readonly accepted: string
}

/** A function that records a refusal. It returns, so the check that calls it continues. */
export type Refuse = (refusal: Refusal) => void

/** The maximum number of characters of a value, and of a path, in an error message. The rest is cut off. */
const SEEN_MAX_CHARS = 80
const SEEN_PATH_MAX_CHARS = 200

/** Formats a value for an error: short, and on one line. Never pass a secret. */
export function describeSeen(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value) || value instanceof ByteList) return `a list of ${String(value.length)}`
  if (typeof value === 'object' && value !== null) return 'an object'
  return truncate(JSON.stringify(value) ?? typeof value, SEEN_MAX_CHARS)
}

/** Formats the path of a request or of a file for an error: as it was sent, but short. */
export function describeSeenPath(path: string): string {
  return truncate(path, SEEN_PATH_MAX_CHARS)
}

function truncate(text: string, maxChars: number): string {
  return text.length <= maxChars ? text : `${text.slice(0, maxChars)}…`
}

/** An `invalid_request` problem for a field of a request. Its message repeats the value, so never pass a secret. */
export function invalidRequest(field: string, seen: unknown, accepted: string): Problem {
  return refusalProblem({ code: 'invalid_request', field, seen: describeSeen(seen), accepted })
}

/**
 * The problem for a refusal. Its message begins with the code's message of `PROBLEMS`. Its `details` contain the
 * refusal.
 */
export function refusalProblem(refusal: Refusal): Problem {
  const { code, field, seen, accepted } = refusal
  const sawWhat = seen === null ? '' : ` is ${seen};`
  return new Problem(code, {
    message: `${PROBLEMS[code].message}: ${field}${sawWhat === '' ? ':' : sawWhat} accepted: ${accepted}`,
    details: { field, seen, accepted },
  })
}
