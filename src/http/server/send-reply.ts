import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'
import { encodeInTurns } from '../../lib/turns/next-turn.ts'
import type { HandlerReply } from '../handlers/handler.ts'
import { isNotModified } from '../requests/conditional-requests.ts'
import { JSON_TYPE } from '../requests/problem-reply.ts'
import { EVENT_STREAM_HEADERS, openEventStream } from '../streams/event-stream.ts'
import { IN_PIECES_FROM, streamBuffers } from './stream-buffers.ts'

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
  if ('replayed' in answer) {
    const { replayed } = answer
    reply.code(replayed.status).headers({ ...replayed.headers, 'idempotency-replayed': 'true' })
    return 'pieces' in replayed ? sendPieces(reply, replayed.pieces) : sendJson(reply, replayed.body)
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
