import { createHash } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { claimIdempotencyKey, idempotencyReplyLost, type AttemptEnd, type StoredReply } from '../../control/requests/idempotency.ts' // prettier-ignore
import { OrgQueueFull } from '../../control/requests/limit-org-connections.ts'
import { PROBLEMS } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/spec/refusal.ts'
import type { AuthenticatedRequest, CallUseCase, Handler, HandlerReply } from '../handlers/handler.ts'
import { problemOf, renderProblem } from '../server/problem-reply.ts'

/** Printable ASCII. */
const KEY_SHAPE = /^[\x20-\x7e]{1,255}$/
const KEY_RULE = '1 to 255 printable ASCII characters'
const NO_BODY = Buffer.alloc(0)

/** What serving a request under a key needs beside it. */
export type IdempotencyDeps = {
  readonly call: CallUseCase
  readonly bodyLimitBytes: number
  /** The bytes of a request's body, as they came. */
  readonly bytesOf: (request: FastifyRequest) => Buffer | undefined
}

/**
 * Serves a request: one with an `Idempotency-Key` once, and as before whenever it comes again. Refusals are kept as other
 * replies are, but not 429 and 5xx: they tell of the moment, and the same request may be served the next.
 */
export async function serveIdempotently(
  deps: IdempotencyDeps,
  { operation, handler, request }: { readonly operation: Operation; readonly handler: Handler; readonly request: FastifyRequest }, // prettier-ignore
  raw: AuthenticatedRequest,
): Promise<HandlerReply> {
  const key = parseIdempotencyKey(operation, request)
  if (key === null) return await handler(raw)
  const signal = raw.signal()
  const request_sha256 = hashRequest(request, deps.bytesOf(request) ?? NO_BODY)
  const claim = await deps.call(claimIdempotencyKey, raw.caller, { key, request_sha256, signal })
  if (claim.kind === 'replay') return { kept: claim.reply }
  try {
    if (claim.attempt.isRetry && operation.isResumable !== true)
      throw idempotencyReplyLost('the first try may have been done')
    const answer = await handler({ ...raw, attempt: claim.attempt })
    // Who left did not wait to the end: the next try waits on, for what this one did.
    const isCut = signal.aborted && operation.isResumable === true
    await claim.end(isCut ? { kind: 'given_up' } : { kind: 'replied', reply: storedReplyOf(answer) })
    return answer
  } catch (error) {
    await claim.end(tryEndOfError(error, { deps, isRetry: claim.attempt.isRetry, requestId: request.id }))
    throw error
  }
}

/** The key of a request, or null. A read is the same however often it comes; other methods than POST take no key. */
function parseIdempotencyKey({ method, takes }: Operation, { headers, raw }: FastifyRequest): string | null {
  const header = headers['idempotency-key']
  if (header === undefined || method === 'GET') return null
  if (method !== 'POST' || takes === 'bytes')
    throw invalidRequest('idempotency-key', header, 'no key: only POST with a JSON body takes one')
  const given = raw.headersDistinct['idempotency-key'] ?? []
  if (typeof header !== 'string' || given.length !== 1 || !KEY_SHAPE.test(header))
    throw invalidRequest('idempotency-key', header, `one key of ${KEY_RULE}`)
  return header
}

/** What makes a request the one that it is, as it was sent: method, path and query, what it demands, and the body's bytes. */
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

/** Other 429 and 502 come before anything is done; of a retry, the first try may have done it all the same. */
function tryEndOfError(error: unknown, { deps, isRetry, requestId }: Ended): AttemptEnd {
  const problem = problemOf(error, deps.bodyLimitBytes)
  const { status } = PROBLEMS[problem.code]
  if (problem.code === 'idempotency_key_in_use' || problem instanceof OrgQueueFull) return { kind: 'given_up' }
  if (status === 429 || status === 502) return isRetry ? { kind: 'given_up' } : { kind: 'nothing_done' }
  if (status >= 500) return { kind: 'given_up' }
  return { kind: 'replied', reply: { status, headers: {}, body: renderProblem(problem, requestId).body } }
}
