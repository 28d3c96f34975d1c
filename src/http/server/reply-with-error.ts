import type { FastifyReply } from 'fastify'
import type { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import { lingerAfterRefusal } from '../connections/linger-after-refusal.ts'
import { problemOf, renderProblem, type ProblemReply } from '../requests/problem-reply.ts'
import { ClientDisconnected } from '../requests/request-signals.ts'
import type { Exchange } from './send-reply.ts'

export type ErrorDeps = { readonly log: Log; readonly settings: { readonly bodyLimitBytes: number } }

/** Sends a thrown value as a problem. Unexpected errors are logged here and nowhere else. */
export function replyWithError(
  deps: ErrorDeps,
  error: unknown,
  { request, reply }: Pick<Exchange, 'request' | 'reply'>,
): FastifyReply {
  const { id, method, routeOptions, raw } = request
  const problem = refusalOfDisconnected(error, { request, reply }) ?? error
  const { status, headers, body } = renderError(deps, problem, { request_id: id, method, route: routeOptions.url })
  lingerAfterRefusal(raw, reply)
  return reply.code(status).headers(headers).send(body)
}

/** A client that disconnects in the middle of its body, or before a reply in pieces has begun, must not cause a log entry. */
function refusalOfDisconnected(
  error: unknown,
  { request, reply }: Pick<Exchange, 'request' | 'reply'>,
): Problem | null {
  const { raw } = request
  if (raw.destroyed && raw.complete === false) return invalidRequest('body', 'a part of it', 'all of it')
  const isCut = reply.raw.destroyed && hasErrorCode(error, 'ERR_STREAM_PREMATURE_CLOSE')
  return isCut || error instanceof ClientDisconnected
    ? invalidRequest('connection', 'closed', 'open until the reply has ended')
    : null
}

type ErrorContext = { readonly request_id: string; readonly method?: string; readonly route?: string | undefined }

/** Renders a thrown value as a problem, and logs it if it is unexpected. */
export function renderError(deps: ErrorDeps, error: unknown, about: ErrorContext): ProblemReply {
  const problem = problemOf(error, deps.settings.bodyLimitBytes)
  if (problem.code === 'internal_error') {
    deps.log.error({ ...about, error: problem.cause }, 'request failed')
  } else if (problem.code === 'unavailable' && problem.cause !== undefined)
    deps.log.warn({ ...about, error: problem.cause }, 'request refused: what it needs is unavailable')
  return renderProblem(problem, about.request_id)
}
