import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'
import type { DeferredReply, TaggedReply } from '../handlers/handler.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import { JSON_TYPE, type ProblemReply } from '../requests/problem-reply.ts'
import type { Exchange } from './send-reply.ts'
import { endWithText } from './stream-buffers.ts'

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
