import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { isUnchanged } from '../requests/conditions.ts'
import type { LaterReply, TaggedReply } from '../handlers/handler.ts'
import { JSON_TYPE, type ProblemReply } from '../server/problem-reply.ts'
import type { LongWaits } from './release-parser.ts'
import type { Exchange } from '../server/send-answer.ts'

/** Keeps an exchange whose reply comes later, with as little memory as can be: nothing of its handler stays. */
export type Park = (exchange: Exchange, later: LaterReply) => FastifyReply

export type ParkDeps = {
  /** Ends every wait, so that the replies go out. */
  readonly closing: AbortSignal
  readonly longWaits: LongWaits
  /** Renders a refusal or failure of a request, and logs it if nobody expected it. */
  readonly renderError: (error: Error, requestId: string) => ProblemReply
}

/** Makes the parking of one server. A client that leaves ends its wait. */
export function makePark({ closing, longWaits, renderError }: ParkDeps): Park {
  const leaves = new Set<() => void>()
  closing.addEventListener('abort', () => {
    for (const leave of leaves) leave()
  })
  return ({ request, reply, operation }, later) => {
    const response = reply.raw
    longWaits.add(request.raw, response)
    const leave = later.start((end) => {
      leaves.delete(leave)
      if (response.closed) return
      respond({ reply, operation, renderError }, end)
    })
    reply.hijack() // from here on no error is answered by itself
    leaves.add(leave)
    response.once('close', leave)
    if (closing.aborted || response.closed) leave()
    return reply
  }
}

type Parked = Pick<ParkDeps, 'renderError'> & {
  readonly reply: FastifyReply
  readonly operation: Operation
}

function respond({ reply, operation, renderError }: Parked, end: TaggedReply | Error): void {
  const response = reply.raw
  const headers: OutgoingHttpHeaders = Object.fromEntries(Object.entries(reply.getHeaders()))
  const given = end instanceof Error ? end : conditional(operation, response, end)
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
function conditional(operation: Operation, { req }: ServerResponse, object: TaggedReply): TaggedReply | Error {
  try {
    return isUnchanged(operation, req.headers, object.tag) ? { ...object, json: '' } : object
  } catch (error) {
    return error instanceof Error ? error : new Error('a condition could not be checked', { cause: error })
  }
}

type Raw = { readonly status: number; readonly headers: OutgoingHttpHeaders; readonly body: string }

function write(response: ServerResponse, { status, headers, body }: Raw): void {
  const length = status === 304 ? {} : { 'content-length': Buffer.byteLength(body) }
  response.writeHead(status, { ...headers, ...length }).end(body)
}
