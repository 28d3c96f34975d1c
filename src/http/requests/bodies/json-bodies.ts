import type { FastifyInstance, FastifyRequest } from 'fastify'
import { makeFairSemaphore } from '../../../lib/turns/fair-semaphore.ts'
import { unsupportedMediaType } from '../problem-reply.ts'
import { parseJson, parseLargeJson } from './parse-json.ts'
import { totalBytes } from '../../../lib/streams/buffer-pieces.ts'
import { LARGE_TEXT, nextTurn } from '../../../lib/turns/next-turn.ts'
import { collectBody, joinInTurns } from './collect-body.ts'

/** Reads request bodies of strict JSON. */

export type JsonBodyDeps = {
  /** Identifies the sender of a request. Large bodies of different senders are parsed in turn. */
  readonly senderOf: (request: FastifyRequest) => string
  /** Called with the bytes of a body whose request has an Idempotency-Key. */
  readonly onIdempotentBody: (request: FastifyRequest, bytes: Buffer) => void
}

/**
 * Accepts only bodies of strict JSON. An absent body is undefined, whatever its content type. The operation's schema
 * decides whether a body is required.
 */
export function acceptJsonBodies(app: FastifyInstance, { senderOf, onIdempotentBody }: JsonBodyDeps): void {
  const queue = makeBodyQueue()
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', (request, payload, done) => {
    const keep = (bytes: Buffer): Buffer => {
      if (request.headers['idempotency-key'] !== undefined) onIdempotentBody(request, bytes)
      return bytes
    }
    const parse = (bytes: Buffer): unknown => (bytes.length === 0 ? undefined : parseJsonBody(request, bytes))
    const parseLarge = async (pieces: readonly Buffer[]): Promise<unknown> =>
      parseLargeBody(request, keep(await joinInTurns(pieces)))
    collectBody(request, payload, (error, pieces) => {
      if (error !== null) done(error)
      else if (totalBytes(pieces) > LARGE_TEXT) void queue.parse(senderOf(request), () => parseLarge(pieces), done)
      else callDone(() => parse(keep(Buffer.concat(pieces))), done)
    })
  })
  app.addContentTypeParser('*', (request, _payload, done) => {
    if (request.headers['content-length'] === '0') done(null, undefined)
    else done(unsupportedMediaType(request.headers['content-type'] ?? 'no content type'))
  })
}

/**
 * Parses a body of strict JSON. Throws `unsupported_media_type` for a content encoding or for a charset other than
 * UTF-8. Throws `invalid_request` as `parseJson` does.
 */
export function parseJsonBody(request: Pick<FastifyRequest, 'headers'>, body: Buffer): unknown {
  requirePlainUtf8(request)
  return parseJson(body)
}

function parseLargeBody(request: Pick<FastifyRequest, 'headers'>, body: Buffer): Promise<unknown> {
  requirePlainUtf8(request)
  return parseLargeJson(body)
}

function requirePlainUtf8({ headers }: Pick<FastifyRequest, 'headers'>): void {
  const charset = /;\s*charset="?([^;"\s]+)/i.exec(headers['content-type'] ?? '')?.[1]?.toLowerCase() ?? 'utf-8'
  if (charset !== 'utf-8' && charset !== 'utf8' && charset !== 'us-ascii')
    throw unsupportedMediaType(`the charset ${charset}`)
  const encoding = headers['content-encoding'] ?? 'identity'
  if (encoding !== 'identity') throw unsupportedMediaType(`the content encoding ${encoding}`)
}

type Done = (error: Error | null, value?: unknown) => void

type BodyQueue = {
  /** Calls `done` with the result or the error of `parse`, when it is the sender's turn. Never rejects. */
  parse(sender: string, parse: () => Promise<unknown>, done: Done): Promise<void>
}

/**
 * Creates a queue that parses large bodies one at a time, senders in turn. Between two bodies, and between the steps of one, the
 * process serves other requests. Otherwise it would serve none for the sum of their times: 4 MiB of JSON take
 * about 100 ms (2026-11). The limit on an organization's body bytes also bounds this queue.
 */
function makeBodyQueue(): BodyQueue {
  const semaphore = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  return {
    async parse(sender, parse, done) {
      const release = await semaphore.acquire(sender)
      await nextTurn()
      const [parsed] = await Promise.allSettled([(async () => parse())()])
      await nextTurn()
      callDone(() => valueOf(parsed), done) // also runs the handler up to its first `await`
      await nextTurn()
      release?.()
    },
  }
}

function valueOf(parsed: PromiseSettledResult<unknown>): unknown {
  if (parsed.status === 'rejected') throw parsed.reason
  return parsed.value
}

function callDone(parse: () => unknown, done: Done): void {
  let value: unknown
  try {
    value = parse()
  } catch (error) {
    done(error instanceof Error ? error : new Error('a body could not be parsed', { cause: error }))
    return
  }
  done(null, value)
}
