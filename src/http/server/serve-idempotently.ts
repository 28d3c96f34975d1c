import { createHash } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { claimIdempotencyKey, idempotencyReplyLost, type AttemptEnd, type StoredReply } from '../../control/requests/idempotency.ts' // prettier-ignore
import { OrgQueueFull } from '../../domain/requests/org-queue-full.ts'
import { PROBLEMS } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import type { AuthenticatedRequest, CallUseCase, Handler, HandlerReply } from '../handlers/handler.ts'
import { problemOf, renderProblem } from '../requests/problem-reply.ts'

/** Printable ASCII. */
const KEY_SHAPE = /^[\x20-\x7e]{1,255}$/
const KEY_RULE = '1 to 255 printable ASCII characters'
const NO_BODY = Buffer.alloc(0)

type KeyedServing = {
  readonly key: string
  readonly operation: Operation
  readonly handler: Handler
  readonly request: FastifyRequest
}

/** What serving requests with a key needs. */
export type IdempotencyDeps = {
  readonly call: CallUseCase
  readonly bodyLimitBytes: number
  /** The bytes of a request's body, as they arrived. */
  readonly bytesOf: (request: FastifyRequest) => Buffer | undefined
}

/**
 * Serves a request with an `Idempotency-Key` once, and gives the stored reply whenever it comes again. Refusals are stored as
 * other replies are, except 429 and 5xx: they depend on the moment, so a retry is served.
 */
export async function serveIdempotently(
  deps: IdempotencyDeps,
  { key, operation, handler, request }: KeyedServing,
  raw: AuthenticatedRequest,
): Promise<HandlerReply> {
  const signal = raw.signal()
  const request_sha256 = hashRequest(request, deps.bytesOf(request) ?? NO_BODY)
  const claim = await deps.call(claimIdempotencyKey, raw.caller, { key, request_sha256, signal })
  if (claim.kind === 'replay') return { kept: claim.reply }
  try {
    if (claim.attempt.isRetry && operation.isResumable !== true)
      throw idempotencyReplyLost('the first attempt may have been done')
    const answer = await handler({ ...raw, attempt: claim.attempt })
    // If the client disconnected, the reply is not final: a retry resumes the wait for what this attempt began.
    const isCut = signal.aborted && operation.isResumable === true
    await claim.end(isCut ? { kind: 'given_up' } : { kind: 'replied', reply: storedReplyOf(answer) })
    return answer
  } catch (error) {
    await claim.end(attemptEndOf(error, { deps, isRetry: claim.attempt.isRetry, requestId: request.id }))
    throw error
  }
}

/** The key of a request, or null. Reads ignore a key. Throws `invalid_request` for a malformed key and for other methods than POST. */
export function parseIdempotencyKey({ method, takes }: Operation, { headers, raw }: FastifyRequest): string | null {
  const header = headers['idempotency-key']
  if (header === undefined || method === 'GET') return null
  if (method !== 'POST' || takes === 'bytes')
    throw invalidRequest('idempotency-key', header, 'no key: only POST with a JSON body takes one')
  const given = raw.headersDistinct['idempotency-key'] ?? []
  if (typeof header !== 'string' || given.length !== 1 || !KEY_SHAPE.test(header))
    throw invalidRequest('idempotency-key', header, `one key of ${KEY_RULE}`)
  return header
}

/** A hash of what must be equal in every attempt: method, path and query, `If-Match`, and the bytes of the body. */
function hashRequest({ method, url, headers }: FastifyRequest, body: Buffer): Buffer {
  const head = JSON.stringify([method, url, headers['if-match'] ?? null])
  return createHash('sha256').update(head).update('\n').update(body).digest()
}

function storedReplyOf(answer: HandlerReply): StoredReply {
  if (typeof answer === 'string') return { status: 200, headers: {}, body: answer }
  if ('json' in answer) return { status: 200, headers: { etag: answer.tag }, body: answer.json }
  throw new Error('an operation that takes an Idempotency-Key must answer JSON')
}

type Ended = { readonly deps: IdempotencyDeps; readonly isRetry: boolean; readonly requestId: string }

/** Other 429 and 502 refusals come before anything is done; but the first attempt of a retry may have done it all. */
function attemptEndOf(error: unknown, { deps, isRetry, requestId }: Ended): AttemptEnd {
  const problem = problemOf(error, deps.bodyLimitBytes)
  const { status } = PROBLEMS[problem.code]
  if (problem.code === 'idempotency_key_in_use' || problem instanceof OrgQueueFull) return { kind: 'given_up' }
  if (status === 429 || status === 502) return isRetry ? { kind: 'given_up' } : { kind: 'nothing_done' }
  if (status >= 500) return { kind: 'given_up' }
  return { kind: 'replied', reply: { status, headers: {}, body: renderProblem(problem, requestId).body } }
}
