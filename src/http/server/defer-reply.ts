import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import type { DeferredReply, TaggedReply } from '../handlers/handler.ts'
import { JSON_TYPE, type ProblemReply } from './problem-reply.ts'
import type { LongWaits } from '../connections/release-parser.ts'
import type { Exchange } from './send-reply.ts'

/** Keeps an exchange whose reply comes later, with as little memory as can be: nothing of its handler stays. */
export type DeferReply = (exchange: Exchange, later: DeferredReply) => FastifyReply

export type DeferReplyDeps = {
  /** Ends every wait, so that the replies go out. */
  readonly closing: AbortSignal
  readonly longWaits: LongWaits
  /** Renders a refusal or failure of a request, and logs it if nobody expected it. */
  readonly renderError: (error: Error, requestId: string) => ProblemReply
}

/** Makes the parking of one server. A client that leaves ends its wait. */
export function makeDeferReply({ closing, longWaits, renderError }: DeferReplyDeps): DeferReply {
  const cancels = new Set<() => void>()
  closing.addEventListener('abort', () => {
    for (const cancel of cancels) cancel()
  })
  return ({ request, reply, operation }, later) => {
    const response = reply.raw
    longWaits.add(request.raw, response)
    const leave = later.start((end) => {
      cancels.delete(leave)
      if (response.closed) return
      sendDeferred({ reply, operation, renderError }, end)
    })
    reply.hijack() // from here on no error is answered by itself
    cancels.add(leave)
    response.once('close', leave)
    if (closing.aborted || response.closed) leave()
    return reply
  }
}

type DeferredExchange = Pick<DeferReplyDeps, 'renderError'> & {
  readonly reply: FastifyReply
  readonly operation: Operation
}

function sendDeferred({ reply, operation, renderError }: DeferredExchange, end: TaggedReply | Error): void {
  const response = reply.raw
  const headers: OutgoingHttpHeaders = Object.fromEntries(Object.entries(reply.getHeaders()))
  const given = end instanceof Error ? end : applyConditions(operation, response, end)
  if (given instanceof Error) {
    const { status, headers: own, body } = renderError(given, String(headers['x-request-id']))
    write(response, { status, headers: { ...headers, ...own }, body })
    return
  }
  const tag = { ...headers, etag: given.tag }
  if (given.json === '') write(response, { status: 304, headers: tag, body: '' })
  else write(response, { status: 200, headers: { ...tag, 'content-type': JSON_TYPE }, body: given.json })
}

/** The object, without its text if the client has it, or why it does not get it. */
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
