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

/** Records a refusal, so that a check can continue after it. */
export type Refuse = (refusal: Refusal) => void

/** The most characters of a value that an error repeats. */
const SEEN_MAX_CHARS = 80

/** Formats a value for an error: short, and on one line. Never pass a secret. */
export function describeSeen(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return `a list of ${String(value.length)}`
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value) ?? typeof value
  return text.length <= SEEN_MAX_CHARS ? text : `${text.slice(0, SEEN_MAX_CHARS)}…`
}

/** An `invalid_request` problem for a field of a request. Its message repeats the value, so never pass a secret. */
export function invalidRequest(field: string, seen: unknown, accepted: string): Problem {
  return refusalProblem({ code: 'invalid_request', field, seen: describeSeen(seen), accepted })
}

/** The problem for a refusal. Its message begins with the message of the code. Its details are the refusal. */
export function refusalProblem(refusal: Refusal): Problem {
  const { code, field, seen, accepted } = refusal
  const sawWhat = seen === null ? '' : ` is ${seen};`
  return new Problem(code, {
    message: `${PROBLEMS[code].message}: ${field}${sawWhat === '' ? ':' : sawWhat} accepted: ${accepted}`,
    details: { field, seen, accepted },
  })
}
