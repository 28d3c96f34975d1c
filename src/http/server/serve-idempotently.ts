import { createHash } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { claimIdempotencyKey, idempotencyReplyLost, type AttemptEnd } from '../../control/requests/idempotency.ts' // prettier-ignore
import { OrgQueueFull } from '../../domain/requests/org-queue-full.ts'
import { PROBLEMS } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { eachInTurns, splitBuffer } from '../../lib/turns/next-turn.ts'
import type { AuthenticatedRequest, Handler, HandlerReply } from '../handlers/handler.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { problemOf, renderProblem } from '../requests/problem-reply.ts'

/** The characters and length of a valid key: printable ASCII. */
const KEY_SHAPE = /^[\x20-\x7e]{1,255}$/
const KEY_RULE = '1 to 255 printable ASCII characters'
const NO_BODY = Buffer.alloc(0)

type KeyedServing = {
  readonly key: string
  readonly operation: Operation
  readonly handler: Handler
  readonly request: FastifyRequest
}

/** What is needed to serve requests with an Idempotency-Key. */
export type IdempotencyDeps = {
  readonly call: CallUseCase
  readonly bodyLimitBytes: number
  /** The bytes of a request's body, as they arrived. */
  readonly bytesOf: (request: FastifyRequest) => Buffer | undefined
}

/**
 * Serves a request with an `Idempotency-Key` only once. Repeated requests get the stored reply. Refusals are stored
 * like other replies. Only 429 and 5xx are not stored, because they depend on the moment: a retry is executed again.
 */
export async function serveIdempotently(
  deps: IdempotencyDeps,
  { key, operation, handler, request }: KeyedServing,
  raw: AuthenticatedRequest,
): Promise<HandlerReply> {
  const signal = raw.signal()
  const request_sha256 = await hashRequest(request, deps.bytesOf(request) ?? NO_BODY)
  const keyed = { key, request_sha256, signal, beforeLarge: raw.requireReader }
  const claim = await deps.call(claimIdempotencyKey, raw.caller, keyed)
  if (claim.kind === 'replay') return { replayed: claim.reply }
  try {
    if (claim.attempt.isRetry && operation.isResumable !== true)
      throw idempotencyReplyLost('the first attempt may have been done')
    const answer = await handler({ ...raw, attempt: claim.attempt })
    // If the client disconnected, this reply is not final: a retry resumes the wait for the work that this attempt
    // began.
    const isCut = signal.aborted && operation.isResumable === true
    await claim.end(isCut ? { kind: 'given_up' } : { kind: 'replied', ...storedReplyOf(answer) })
    return answer
  } catch (error) {
    await claim.end(attemptEndOf(error, { deps, isRetry: claim.attempt.isRetry, requestId: request.id }))
    throw error
  }
}

/**
 * Parses the `Idempotency-Key` header of a request. Null if there is none, and for a GET, which ignores it. Throws
 * `invalid_request` for a malformed key, and for a key on any other operation than a POST with a JSON body.
 */
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

/**
 * Hashes everything that must be equal in every attempt: method, path and query, `If-Match`, and the bytes of the body.
 */
async function hashRequest({ method, url, headers }: FastifyRequest, body: Buffer): Promise<Buffer> {
  const head = JSON.stringify([method, url, headers['if-match'] ?? null])
  const hash = createHash('sha256').update(head).update('\n')
  await eachInTurns(splitBuffer(body), (piece) => void hash.update(piece))
  return hash.digest()
}

function storedReplyOf(answer: HandlerReply): Omit<Extract<AttemptEnd, { kind: 'replied' }>, 'kind'> {
  if (typeof answer === 'string') return { reply: { status: 200, headers: {}, body: answer } }
  if ('json' in answer)
    return { reply: { status: 200, headers: { etag: answer.tag }, body: answer.json }, encodedBody: answer.encoded }
  throw new Error('an operation that takes an Idempotency-Key must answer JSON')
}

type Ended = { readonly deps: IdempotencyDeps; readonly isRetry: boolean; readonly requestId: string }

/**
 * Decides how the claim of an attempt ends that failed with `error`. A refusal with 429 or 502 comes before the attempt
 * changes anything, so the next attempt may count as the first. Exceptions are `idempotency_key_in_use`,
 * `OrgQueueFull`, and a retry, because an earlier attempt may have changed something.
 */
function attemptEndOf(error: unknown, { deps, isRetry, requestId }: Ended): AttemptEnd {
  const problem = problemOf(error, deps.bodyLimitBytes)
  const { status } = PROBLEMS[problem.code]
  if (problem.code === 'idempotency_key_in_use' || problem instanceof OrgQueueFull) return { kind: 'given_up' }
  if (status === 429 || status === 502) return isRetry ? { kind: 'given_up' } : { kind: 'nothing_done' }
  if (status >= 500) return { kind: 'given_up' }
  return { kind: 'replied', reply: { status, headers: {}, body: renderProblem(problem, requestId).body } }
}
