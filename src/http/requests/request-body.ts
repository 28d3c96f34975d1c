import type { FastifyInstance, FastifyRequest } from 'fastify'
import { parseJsonBody } from './json-body.ts'
import { makeBodyQueue } from './body-queue.ts'
import { unsupportedMediaType } from '../server/problem-reply.ts'

/** What is done with bodies beside reading them. */
export type JsonBodyDeps = {
  /** Whose turn it is when a large body of this request is read. */
  readonly senderOf: (request: FastifyRequest) => string
  /** Gets the bytes of those that come with an Idempotency-Key. */
  readonly onIdempotentBody: (request: FastifyRequest, bytes: Buffer) => void
}

/**
 * Takes bodies as strict JSON and nothing else. No body at all is undefined, whatever its content type says: the
 * operation's schema decides whether it needs one.
 */
export function acceptJsonBodies(app: FastifyInstance, { senderOf, onIdempotentBody }: JsonBodyDeps): void {
  const largeBodies = makeBodyQueue()
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
    const bytes = typeof body === 'string' ? Buffer.from(body) : body
    if (request.headers['idempotency-key'] !== undefined) onIdempotentBody(request, bytes)
    largeBodies.read(
      { from: senderOf(request), bytes: bytes.length },
      () => (bytes.length === 0 ? undefined : parseJsonRequest(request, bytes)),
      done,
    )
  })
  app.addContentTypeParser('*', (request, _payload, done) => {
    if (request.headers['content-length'] === '0') done(null, undefined)
    else done(unsupportedMediaType(request.headers['content-type'] ?? 'no content type'))
  })
}

/** The value of a body that is strict JSON. Throws what is answered when it is not, or is said to be something else. */
export function parseJsonRequest({ headers }: Pick<FastifyRequest, 'headers'>, body: Buffer): unknown {
  const charset = /;\s*charset="?([^;"\s]+)/i.exec(headers['content-type'] ?? '')?.[1]?.toLowerCase() ?? 'utf-8'
  if (charset !== 'utf-8' && charset !== 'utf8' && charset !== 'us-ascii')
    throw unsupportedMediaType(`the charset ${charset}`)
  const encoding = headers['content-encoding'] ?? 'identity'
  if (encoding !== 'identity') throw unsupportedMediaType(`the content encoding ${encoding}`)
  return parseJsonBody(body)
}
