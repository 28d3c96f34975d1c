import { mapOutageToProblem } from '../../control/requests/database-outage.ts'
import { publicCode, Problem, PROBLEMS } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { errorCodeOf } from '../../lib/error-code.ts'

/** An HTTP reply that reports a problem. */
export type ProblemReply = {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** `{"error": {code, message, details}}` as JSON text. */
  readonly body: string
}

/** The seconds after which a refused client should retry, unless the problem names another time. */
const RETRY_AFTER_SECS = 1

/**
 * Renders a problem as a reply. The reply for an internal error shows only the request id, by which an operator finds
 * the error in the log.
 */
export function renderProblem(problem: Problem, requestId: string): ProblemReply {
  const { status } = PROBLEMS[problem.code]
  const isInternal = problem.code === 'internal_error'
  const error = {
    code: publicCode(problem.code),
    message: isInternal ? PROBLEMS.internal_error.message : problem.message,
    details: isInternal ? { request_id: requestId } : problem.details,
  }
  const retryAfter =
    status === 429 || status === 503 || problem.retryAfterSeconds !== null
      ? { 'retry-after': String(problem.retryAfterSeconds ?? RETRY_AFTER_SECS) }
      : {}
  const challenge = status === 401 ? { 'www-authenticate': 'Bearer' } : {}
  return {
    status,
    headers: { 'content-type': JSON_TYPE, 'x-request-id': requestId, ...retryAfter, ...challenge },
    body: JSON.stringify({ error }),
  }
}

export const JSON_TYPE = 'application/json; charset=utf-8'

/**
 * Converts a thrown value to a problem. Database outages and Fastify's errors have their own problems. Everything else
 * is `internal_error`.
 */
export function problemOf(thrown: unknown, bodyLimitBytes: number): Problem {
  const error = mapOutageToProblem(thrown)
  if (error instanceof Problem) return error
  return FRAMEWORK_ERRORS[errorCodeOf(error) ?? '']?.(bodyLimitBytes) ?? new Problem('internal_error', { cause: error })
}

/** The problems for Fastify's error codes. */
const FRAMEWORK_ERRORS: Readonly<Record<string, (bodyLimitBytes: number) => Problem>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: (bodyLimitBytes) =>
    new Problem('payload_too_large', {
      details: { field: 'body', seen: 'more bytes', accepted: `at most ${String(bodyLimitBytes)} bytes` },
    }),
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () => unsupportedMediaType('a malformed content type'),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () =>
    refusalProblem({
      code: 'invalid_request',
      field: 'body',
      seen: 'another length',
      accepted: 'as many bytes as content-length says',
    }),
  FST_ERR_BAD_URL: () =>
    refusalProblem({
      code: 'invalid_request',
      field: 'path',
      seen: 'a malformed path',
      accepted: 'percent-encoded UTF-8',
    }),
  FST_ERR_MAX_PARAM_LENGTH: () =>
    refusalProblem({
      code: 'invalid_request',
      field: 'path',
      seen: 'a longer parameter',
      accepted: 'a name or an identifier',
    }),
}

/** The refusal of a body whose content type is not JSON. */
export function unsupportedMediaType(seen: string): Problem {
  return new Problem('unsupported_media_type', {
    details: { field: 'content-type', seen, accepted: 'application/json in UTF-8' },
  })
}
