import { Socket } from 'node:net'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { makeFairSemaphore } from '../../lib/fair-semaphore.ts'
import { unsupportedMediaType } from './problem-reply.ts'
import { parseJson, parseLargeJson } from './parse-json.ts'
import { totalBytes } from '../../lib/buffer-pieces.ts'
import { LARGE_TEXT, nextTurn } from '../../lib/next-turn.ts'
import { collectBody, joinInTurns } from './collect-body.ts'

/** Reads request bodies: as strict JSON, or as streams for operations that take bytes. */

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

/** How long a streamed body may make no progress before its connection is closed, in milliseconds. */
const STREAM_IDLE_MS = 120_000
/** How long the server continues to read a refused body, so that the client sees the refusal, in milliseconds. */
const REFUSED_LINGER_MS = 5_000

/**
 * The connections on which a body of any length is being streamed. The time limit for the arrival of a request does not
 * apply to them.
 */
export type StreamedBodies = {
  has(socket: Socket): boolean
  /**
   * Exempts a request with a streamed body from the time limit until its reply has ended. Call it once the caller is
   * authenticated.
   */
  begin(request: Pick<FastifyRequest, 'raw'>, reply: Pick<FastifyReply, 'raw'>): void
}

/**
 * Creates an empty set of such connections. A streamed body may take any time while it makes progress. Without progress
 * for `STREAM_IDLE_MS`, its connection is closed.
 */
export function makeStreamedBodies(): StreamedBodies {
  const sockets = new WeakSet<Socket>()
  return {
    has: (socket) => sockets.has(socket),
    begin(request, reply) {
      const { socket } = request.raw
      if (!(socket instanceof Socket)) return // an injected request has no connection
      sockets.add(socket)
      socket.setTimeout(STREAM_IDLE_MS) // Node closes the connection, because no listener handles this timeout
      reply.raw.once('close', () => sockets.delete(socket))
      reply.raw.once('finish', () => {
        if (!request.raw.complete) setTimeout(() => socket.destroy(), REFUSED_LINGER_MS).unref()
      })
    },
  }
}

/** Accepts bodies as streams of bytes, whatever their content type says. An absent body is undefined. */
export function acceptStreamedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser('*', (_request, payload, done) => {
    done(null, payload)
  })
}
