import { Problem, PROBLEMS } from './problem.ts'

/**
 * Why a request can't be served, as a value: which field, what was seen there, and what would be accepted. `seen` is null if the
 * value may be a secret or tells nothing.
 */
export type Refusal = {
  readonly code: 'invalid_request' | 'invalid_sandbox_config'
  /** Such as `network.policy.rules[0].action`, or `query.limit`. */
  readonly field: string
  readonly seen: string | null
  readonly accepted: string
}

/** Collects refusals, so that a check can go on after one. */
export type Refuse = (refusal: Refusal) => void

/** How much of a value an error repeats, in characters. */
const SEEN_MAX_CHARS = 80

/** A value as an error repeats it: short, and on one line. Not for secrets. */
export function describeSeen(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return `a list of ${String(value.length)}`
  if (typeof value === 'object' && value !== null) return 'an object'
  const text = JSON.stringify(value) ?? typeof value
  return text.length <= SEEN_MAX_CHARS ? text : `${text.slice(0, SEEN_MAX_CHARS)}…`
}

/** An `invalid_request` problem for a field of a request. It repeats the value, so it is not for secrets. */
export function invalidRequest(field: string, seen: unknown, accepted: string): Problem {
  return refusalProblem({ code: 'invalid_request', field, seen: describeSeen(seen), accepted })
}

/** The problem for a refusal. Its message begins with that of the code, and its details are the refusal. */
export function refusalProblem(refusal: Refusal): Problem {
  const { code, field, seen, accepted } = refusal
  const sawWhat = seen === null ? '' : ` is ${seen};`
  return new Problem(code, {
    message: `${PROBLEMS[code].message}: ${field}${sawWhat === '' ? ':' : sawWhat} accepted: ${accepted}`,
    details: { field, seen, accepted },
  })
}
