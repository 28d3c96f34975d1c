import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import { EVENT_STREAM_HEADERS, openEventStream } from '../streams/event-stream.ts'
import type { DeferredReply, HandlerReply, TaggedReply } from '../handlers/handler.ts'
import { JSON_TYPE, type ProblemReply } from '../requests/problem-reply.ts'
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'

/** Where an answer goes, and what it is an answer to. */
export type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply; readonly operation: Operation }

const BYTES_TYPE = 'application/octet-stream'

/** Sends what a handler answered: 304 in place of an object that the client has, and a kept reply as it was. */
export function sendReply(
  { request, reply, operation }: Exchange,
  answer: HandlerReply,
  settings: { readonly keepAliveMs: number },
): FastifyReply {
  if (typeof answer === 'string') return reply.header('content-type', JSON_TYPE).send(answer)
  if ('json' in answer) {
    reply.header('etag', answer.tag)
    if (isNotModified(operation, request.headers, answer.tag)) return reply.code(304).send()
    return reply.header('content-type', JSON_TYPE).send(answer.json)
  }
  if ('start' in answer) throw new Error('a reply that comes later is not sent but parked')
  if ('kept' in answer) {
    const { status, headers, body } = answer.kept
    return reply
      .code(status)
      .headers({ ...headers, 'content-type': JSON_TYPE, 'idempotency-replayed': 'true' })
      .send(body)
  }
  if ('events' in answer) return reply.headers(EVENT_STREAM_HEADERS).send(openEventStream(answer.events, settings))
  const { content, sizeBytes } = answer
  return reply.headers({ 'content-type': BYTES_TYPE, 'content-length': sizeBytes }).send(content)
}

/** Keeps an exchange open until its reply comes. The handler has returned by then, so a wait holds little memory. */
export type DeferReply = (exchange: Exchange, later: DeferredReply) => FastifyReply

export type DeferReplyDeps = {
  /** Aborted when the server closes. It ends every wait, so that the replies go out. */
  readonly closing: AbortSignal
  /** Renders a refusal or failure of a request, and logs it if nobody expected it. */
  readonly renderError: (error: Error, requestId: string) => ProblemReply
}

/** Creates the `DeferReply` of one server. A client that disconnects cancels its wait. */
export function makeDeferReply({ closing, renderError }: DeferReplyDeps): DeferReply {
  const cancels = new Set<() => void>()
  closing.addEventListener('abort', () => {
    for (const cancel of cancels) cancel()
  })
  return ({ reply, operation }, deferred) => {
    const response = reply.raw
    const cancel = deferred.start((result) => {
      cancels.delete(cancel)
      if (response.closed) return
      sendDeferred({ reply, operation, renderError }, result)
    })
    reply.hijack() // from here on Fastify answers no error by itself
    cancels.add(cancel)
    response.once('close', cancel)
    if (closing.aborted || response.closed) cancel()
    return reply
  }
}

type DeferredExchange = Pick<DeferReplyDeps, 'renderError'> & {
  readonly reply: FastifyReply
  readonly operation: Operation
}

function sendDeferred({ reply, operation, renderError }: DeferredExchange, result: TaggedReply | Error): void {
  const response = reply.raw
  const headers: OutgoingHttpHeaders = Object.fromEntries(Object.entries(reply.getHeaders()))
  const given = result instanceof Error ? result : applyConditions(operation, response, result)
  if (given instanceof Error) {
    const { status, headers: own, body } = renderError(given, String(headers['x-request-id']))
    write(response, { status, headers: { ...headers, ...own }, body })
    return
  }
  const tag = { ...headers, etag: given.tag }
  if (given.json === '') write(response, { status: 304, headers: tag, body: '' })
  else write(response, { status: 200, headers: { ...tag, 'content-type': JSON_TYPE }, body: given.json })
}

/** The object to send. Its text is empty when the client already has it; an error says why the client gets none. */
function applyConditions(operation: Operation, { req }: ServerResponse, object: TaggedReply): TaggedReply | Error {
  try {
    return isNotModified(operation, req.headers, object.tag) ? { ...object, json: '' } : object
  } catch (error) {
    return error instanceof Error ? error : new Error('a condition could not be checked', { cause: error })
  }
}

type RawResponse = { readonly status: number; readonly headers: OutgoingHttpHeaders; readonly body: string }

function write(response: ServerResponse, { status, headers, body }: RawResponse): void {
  const length = status === 304 ? {} : { 'content-length': Buffer.byteLength(body) }
  response.writeHead(status, { ...headers, ...length }).end(body)
}
