import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import { EVENT_STREAM_HEADERS, openEventStream } from '../streams/event-stream.ts'
import type { HandlerReply } from '../handlers/handler.ts'
import { JSON_TYPE } from '../requests/problem-reply.ts'

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
