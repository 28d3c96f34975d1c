import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import { EVENT_STREAM_HEADERS, openEventStream } from '../streams/event-stream.ts'
import type { DeferredReply, HandlerReply, TaggedReply } from '../handlers/handler.ts'
import type { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { totalBytes } from '../../lib/buffer-pieces.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { encodeInTurns } from '../../lib/next-turn.ts'
import type { Log } from '../../lib/log.ts'
import { JSON_TYPE, problemOf, renderProblem, type ProblemReply } from '../requests/problem-reply.ts'
import { ClientDisconnected } from '../requests/request-signals.ts'
import { lingerAfterRefusal } from '../connections/linger-after-refusal.ts'
import { endWithText, IN_PIECES_FROM, streamBuffers } from './stream-buffers.ts'
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'

/** A request for an operation, and the object to which its reply is sent. */
export type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply; readonly operation: Operation }

const BYTES_TYPE = 'application/octet-stream'

/**
 * Sends the reply of a handler: 304 for an object that the client already has, and the stored reply for a repeated
 * request with an Idempotency-Key.
 */
export function sendReply(
  { request, reply, operation }: Exchange,
  answer: HandlerReply,
  settings: { readonly keepAliveMs: number },
): FastifyReply | Promise<FastifyReply> {
  if (typeof answer === 'string') return sendJson(reply, answer)
  if ('json' in answer) {
    reply.header('etag', answer.tag)
    if (isNotModified(operation, request.headers, answer.tag)) return reply.code(304).send()
    return sendJson(reply, answer.json, answer.encoded)
  }
  if ('start' in answer) throw new Error('a deferred reply must go through DeferReply')
  if ('kept' in answer) {
    const { kept } = answer
    reply.code(kept.status).headers({ ...kept.headers, 'idempotency-replayed': 'true' })
    return 'pieces' in kept ? sendPieces(reply, kept.pieces) : sendJson(reply, kept.body)
  }
  if ('pieces' in answer) return sendPieces(reply, answer.pieces)
  if ('events' in answer) return reply.headers(EVENT_STREAM_HEADERS).send(openEventStream(answer.events, settings))
  const { content, sizeBytes } = answer
  return reply.headers({ 'content-type': BYTES_TYPE, 'content-length': sizeBytes }).send(content)
}

function sendJson(
  reply: FastifyReply,
  json: string,
  encoded?: readonly Buffer[],
): FastifyReply | Promise<FastifyReply> {
  if (json.length > IN_PIECES_FROM) return sendLargeJson(reply, json, encoded)
  return reply.header('content-type', JSON_TYPE).send(json)
}

async function sendLargeJson(reply: FastifyReply, json: string, encoded?: readonly Buffer[]): Promise<FastifyReply> {
  return sendPieces(reply, encoded ?? (await encodeInTurns(json)))
}

function sendPieces(reply: FastifyReply, pieces: readonly Buffer[]): FastifyReply {
  return reply.headers({ 'content-type': JSON_TYPE, 'content-length': totalBytes(pieces) }).send(streamBuffers(pieces))
}

/**
 * Sends a deferred reply when it is available. The handler has returned by then, so a waiting request uses little
 * memory.
 */
export type DeferReply = (
  exchange: Exchange,
  later: DeferredReply,
  count: (object: TaggedReply) => void,
) => FastifyReply

export type DeferReplyDeps = {
  /** Aborted when the server closes. This ends every wait, so that the replies are sent. */
  readonly closing: AbortSignal
  /** Renders the reply for a refusal or failure of a request. Unexpected errors are logged. */
  readonly renderError: (error: Error, requestId: string) => ProblemReply
}

/** Creates the `DeferReply` of one server. When a client disconnects, its wait ends. */
export function makeDeferReply({ closing, renderError }: DeferReplyDeps): DeferReply {
  const cancels = new Set<() => void>()
  closing.addEventListener('abort', () => {
    for (const cancel of cancels) cancel()
  })
  return ({ reply, operation }, deferred, count) => {
    const response = reply.raw
    const cancel = deferred.start((result) => {
      cancels.delete(cancel)
      if (response.closed) return
      sendDeferred({ reply, operation, renderError, count }, result)
    })
    reply.hijack() // from here on Fastify sends no reply of its own
    cancels.add(cancel)
    response.once('close', cancel)
    if (closing.aborted || response.closed) cancel()
    return reply
  }
}

type DeferredExchange = Pick<DeferReplyDeps, 'renderError'> & {
  readonly reply: FastifyReply
  readonly operation: Operation
  readonly count: (object: TaggedReply) => void
}

function sendDeferred({ reply, operation, renderError, count }: DeferredExchange, result: TaggedReply | Error): void {
  const response = reply.raw
  const headers: OutgoingHttpHeaders = Object.fromEntries(Object.entries(reply.getHeaders()))
  const given = result instanceof Error ? result : applyConditions(operation, response, { object: result, count })
  if (given instanceof Error) {
    const { status, headers: own, body } = renderError(given, String(headers['x-request-id']))
    write(response, { status, headers: { ...headers, ...own }, body })
    return
  }
  const tag = { ...headers, etag: given.tag }
  const { json: body, encoded } = given
  if (body === '') write(response, { status: 304, headers: tag, body })
  else write(response, { status: 200, headers: { ...tag, 'content-type': JSON_TYPE }, body, encoded })
}

type CountedObject = { readonly object: TaggedReply; readonly count: (object: TaggedReply) => void }

/**
 * Checks the conditions of a request against the object of the reply, and counts what is sent. Returns the object to send, with an empty
 * text if the client already has the object. Returns an error if a condition fails or the reply is refused.
 */
function applyConditions(
  operation: Operation,
  { req }: ServerResponse,
  { object, count }: CountedObject,
): TaggedReply | Error {
  try {
    if (isNotModified(operation, req.headers, object.tag)) return { ...object, json: '' }
    count(object)
    return object
  } catch (error) {
    return error instanceof Error ? error : new Error('a condition could not be checked', { cause: error })
  }
}

type RawResponse = {
  readonly status: number
  readonly headers: OutgoingHttpHeaders
  readonly body: string
  /** The body in UTF-8, if it is encoded already. */
  readonly encoded?: readonly Buffer[] | undefined
}

function write(response: ServerResponse, { status, headers, body, encoded }: RawResponse): void {
  const sizeBytes = encoded === undefined ? Buffer.byteLength(body) : totalBytes(encoded)
  const length = status === 304 ? {} : { 'content-length': sizeBytes }
  endWithText(response.writeHead(status, { ...headers, ...length }), body, encoded)
}

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
