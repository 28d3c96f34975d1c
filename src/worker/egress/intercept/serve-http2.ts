import { KEPT, keepUntilClosed, type ConnectionMemory } from '../connection-memory.ts'
import {
  connect,
  constants,
  performServerHandshake,
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type OutgoingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import { endsStream } from './http2-flags.ts'
import type { Socket } from 'node:net'
import { watchSession } from '../watch-peer.ts'
import { readHttp2Request } from './http2-request.ts'
import type { ServedRequests } from './intercepted-connection.ts'
import { relayHttp2Response } from './relay-http2-response.ts'
import { RequestRefused } from '../request-refused.ts'
import { sendFields } from './send-fields.ts'
import { firstOf, writeAll, type WriteBounds } from './sockets.ts'

const MAX_HEAD = 64 * 1024
const MAX_FIELDS = 1024
const MAX_STREAMS = 1024
/** How many bytes may wait in a stream, and in all streams of a connection together. */
const WINDOW = 1024 * 1024
/** How much of a body is searched at once. */
const PIECE = 64 * 1024

const OPTIONS = {
  maxHeaderListPairs: MAX_FIELDS,
  maxSendHeaderBlockLength: MAX_HEAD,
  settings: {
    enablePush: false,
    initialWindowSize: WINDOW,
    maxConcurrentStreams: MAX_STREAMS,
    maxHeaderListSize: MAX_HEAD,
  },
}

/** Serves a connection whose client speaks HTTP/2 without having negotiated it. Its server must speak it too. */
export async function serveHttp2({
  guest,
  rules,
  connectServer,
  memory,
  turn,
  onRefused,
}: ServedRequests): Promise<void> {
  let server: Promise<ClientHttp2Session> | null = null
  let isRefused = false
  let session: ServerHttp2Session | null = null
  const bounds = { memory, readAheadBytes: 0 } // it is in the window
  // In a few bytes, a frame may name 64 KiB of fields that were sent before, and a read may have hundreds of frames.
  const nextStep = (): Promise<void> => turn(() => 0) // what waits is counted: fields by `keep`, and bodies by the window
  keepUntilClosed(memory, 2 * WINDOW, guest)
  await openSession(guest, () => {
    guest.once('end', end)
    session = performServerHandshake(guest, OPTIONS)
    session.on('error', end)
    session.on('stream', takeStream)
    session.setLocalWindowSize(WINDOW)
    watchSession(session, end)
  })
  await firstOf(guest, ['close'])
  end()
  const opened = await (server as Promise<ClientHttp2Session> | null)?.catch(() => null)
  opened?.destroy()

  function takeStream(stream: ServerHttp2Stream, _: object, flags: number, rawHeaders: readonly string[]): void {
    stream.on('error', () => stream.destroy())
    serve(stream, rawHeaders, { hasBody: !endsStream(flags) }).catch((error: unknown) => {
      if (error instanceof RequestRefused) refuse(error)
      else if (!stream.closed) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
    })
  }

  async function serve(
    stream: ServerHttp2Stream,
    rawHeaders: readonly string[],
    { hasBody }: { readonly hasBody: boolean },
  ): Promise<void> {
    const keep = keepForStream(stream, { memory, refuse })
    if (!keep(rawHeaders)) return
    const trailers = hasBody ? takeTrailers(stream, keep) : () => ({})
    let checked: OutgoingHttpHeaders = {}
    await nextStep()
    if (stream.closed) return
    const request = readHttp2Request(rawHeaders, rules)
    server ??= openServer()
    const client = await server
    if (stream.closed) return
    const upstream = client.request(request.rawHeaders, { endStream: !hasBody, waitForTrailers: hasBody })
    upstream.on('error', () => upstream.destroy())
    // A head stays here until the server takes it, also after the client has reset its own stream.
    keepUntilClosed(memory, bytesOf(request.rawHeaders), upstream)
    upstream.on('wantTrailers', () => {
      sendFields(upstream, () => {
        upstream.sendTrailers(checked)
      })
    })
    stream.on('close', () => {
      if (!upstream.closed) upstream.close(stream.rstCode)
    })
    relayHttp2Response(upstream, stream, { keep, bounds, nextStep, onRefused: refuse })
    if (!hasBody) return
    const isRelayed = await relayBody(stream, upstream, { check: request.checkBody, nextStep, bounds })
    if (!isRelayed) return
    await nextStep()
    const arrived = trailers()
    request.checkTrailers(fieldsOf(arrived))
    checked = arrived
    upstream.end()
  }

  async function openServer(): Promise<ClientHttp2Session> {
    const socket = await connectServer(['h2'])
    const client = await openSession(socket, () => {
      const opened = connect('http://server', { ...OPTIONS, createConnection: () => socket })
      opened.on('error', end)
      socket.once('end', () => {
        opened.destroy()
      })
      opened.once('connect', () => {
        opened.setLocalWindowSize(WINDOW)
      })
      for (const event of ['close', 'goaway'] as const)
        opened.on(event, () => {
          session?.close()
        })
      return opened
    })
    return client
  }

  function refuse(error: RequestRefused): void {
    if (!isRefused) onRefused(error)
    isRefused = true
    end()
  }

  function end(): void {
    session?.destroy()
    guest.destroy()
  }
}

/**
 * Opens a session on a socket. Node takes what waits in the socket in its next tick, and an exception that nobody can catch
 * ends the process if the socket closed meanwhile. Nothing else is to be done in the tick after `setImmediate`.
 */
async function openSession<Session>(socket: Socket, open: () => Session): Promise<Session> {
  const { promise, resolve, reject } = Promise.withResolvers<Session>()
  setImmediate(() => {
    if (socket.destroyed || socket.readableEnded) reject(new Error('the connection was closed'))
    else resolve(open())
  })
  return promise
}

type Keep = (fields: readonly string[]) => boolean

/** Returns what reserves memory for fields until a stream ends. Node keeps fields, in whatever number, until they are sent. */
function keepForStream(
  stream: ServerHttp2Stream,
  { memory, refuse }: { readonly memory: ConnectionMemory; readonly refuse: (error: RequestRefused) => void },
): Keep {
  const kept = new DisposableStack()
  stream.once('close', () => {
    kept.dispose()
  })
  return (fields) => {
    if (kept.disposed) return false
    try {
      kept.defer(memory.reserve(bytesOf(fields)))
      return true
    } catch (error) {
      if (!(error instanceof RequestRefused)) throw error
      refuse(error)
      return false
    }
  }
}

function bytesOf(fields: readonly string[]): number {
  return KEPT.stream + 2 * fields.join('').length
}

/** Keeps the trailers of a request, which may arrive before its body is read. Returns those that arrived. */
function takeTrailers(from: ServerHttp2Stream, keep: Keep): () => OutgoingHttpHeaders {
  let trailers: OutgoingHttpHeaders = {}
  from.on('trailers', (headers) => {
    if (keep(fieldsOf(headers))) trailers = { ...headers }
  })
  return () => trailers
}

/** Names and values in turn. */
function fieldsOf(headers: OutgoingHttpHeaders): readonly string[] {
  return Object.entries(headers).flatMap(([name, value]) => [name, String(value)])
}

type BodyOptions = {
  readonly check: (bytes: Buffer) => void
  readonly nextStep: () => Promise<void>
  readonly bounds: WriteBounds
}

/** Relays a body in pieces that are searched in a turn each: what waits in a stream may fill its window. Returns whether all of it was. */
async function relayBody(
  from: ServerHttp2Stream,
  to: ClientHttp2Stream,
  { check, nextStep, bounds }: BodyOptions,
): Promise<boolean> {
  for await (const bytes of from.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>)
    for (let at = 0; at < bytes.length; at += PIECE) {
      const piece = bytes.subarray(at, at + PIECE)
      await nextStep()
      check(piece)
      if (!to.writable) return false // the server answered without reading all of it
      await writeAll(to, [piece], bounds)
    }
  return true
}
