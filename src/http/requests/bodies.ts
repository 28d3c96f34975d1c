import { Socket } from 'node:net'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { makeFairSemaphore } from '../../lib/fair-semaphore.ts'
import { unsupportedMediaType } from './problem-reply.ts'
import { parseJson } from './parse-json.ts'

/** How bodies are read: as strict JSON, or as streams of bytes where an operation takes them. */

export type JsonBodyDeps = {
  /** Who sent a request. Large bodies of different senders take turns. */
  readonly senderOf: (request: FastifyRequest) => string
  /** Gets the bytes of bodies that come with an Idempotency-Key. */
  readonly onIdempotentBody: (request: FastifyRequest, bytes: Buffer) => void
}

/**
 * Accepts bodies of strict JSON and no others. An absent body is undefined, whatever its content type says: the schema of the
 * operation decides whether it needs one.
 */
export function acceptJsonBodies(app: FastifyInstance, { senderOf, onIdempotentBody }: JsonBodyDeps): void {
  const queue = makeBodyQueue()
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, body, done) => {
    const bytes = typeof body === 'string' ? Buffer.from(body) : body
    if (request.headers['idempotency-key'] !== undefined) onIdempotentBody(request, bytes)
    const parse = (): unknown => (bytes.length === 0 ? undefined : parseJsonBody(request, bytes))
    queue.parse({ sender: senderOf(request), bytes: bytes.length }, parse, done)
  })
  app.addContentTypeParser('*', (request, _payload, done) => {
    if (request.headers['content-length'] === '0') done(null, undefined)
    else done(unsupportedMediaType(request.headers['content-type'] ?? 'no content type'))
  })
}

/**
 * The value of a body of strict JSON. Throws `unsupported_media_type` for another charset or an encoding, and `invalid_request`
 * as `parseJson` does.
 */
export function parseJsonBody({ headers }: Pick<FastifyRequest, 'headers'>, body: Buffer): unknown {
  const charset = /;\s*charset="?([^;"\s]+)/i.exec(headers['content-type'] ?? '')?.[1]?.toLowerCase() ?? 'utf-8'
  if (charset !== 'utf-8' && charset !== 'utf8' && charset !== 'us-ascii')
    throw unsupportedMediaType(`the charset ${charset}`)
  const encoding = headers['content-encoding'] ?? 'identity'
  if (encoding !== 'identity') throw unsupportedMediaType(`the content encoding ${encoding}`)
  return parseJson(body)
}

/** A body below this size takes no longer to parse than other requests take, in bytes. */
const LARGE_BYTES = 64 * 1024

type Done = (error: Error | null, value?: unknown) => void

type BodyQueue = {
  /** Calls `done` with what `parse` returns or throws: at once for a small body, in turn for a large one. */
  parse(body: { readonly sender: string; readonly bytes: number }, parse: () => unknown, done: Done): void
}

/**
 * Parses large bodies one at a time, senders in turn, and serves other requests between two of them. Several at once would block
 * the process for their sum: 4 MiB of JSON take about 100 ms (2026-11). The queue is bounded by the bytes of bodies that an
 * organization may send at once.
 */
function makeBodyQueue(): BodyQueue {
  const semaphore = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  return {
    parse({ sender, bytes }, parse, done) {
      if (bytes <= LARGE_BYTES) callDone(parse, done)
      else void parseInTurn(sender, parse, done) // it never rejects: `done` gets every error
    },
  }

  async function parseInTurn(sender: string, parse: () => unknown, done: Done): Promise<void> {
    const release = await semaphore.acquire(sender)
    setImmediate(() => {
      callDone(parse, done) // includes what the handler does before it first waits
      setImmediate(() => release?.())
    })
  }
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

/** How long a stream may stand still before its connection is closed, in milliseconds. */
const STREAM_IDLE_MS = 120_000
/** How long the rest of a refused body is still read, so that the client sees the refusal, in milliseconds. */
const REFUSED_LINGER_MS = 5_000

/** The connections on which a body of any length is streamed. The time limit of a whole request does not apply to them. */
export type StreamedBodies = {
  has(socket: Socket): boolean
  /** Notes that a request takes or gives a stream, until its reply has ended. Call it once the caller is known. */
  begin(request: FastifyRequest, reply: FastifyReply): void
}

/** Creates an empty set of streams. A stream may take any time while it moves; one that stands still is closed. */
export function makeStreamedBodies(): StreamedBodies {
  const sockets = new WeakSet<Socket>()
  return {
    has: (socket) => sockets.has(socket),
    begin(request, reply) {
      const { socket } = request.raw
      if (!(socket instanceof Socket)) return // an injected request has no connection
      sockets.add(socket)
      socket.setTimeout(STREAM_IDLE_MS) // Node closes a connection whose timeout nobody handles
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
