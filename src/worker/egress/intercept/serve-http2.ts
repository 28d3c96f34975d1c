import {
  connect,
  constants,
  performServerHandshake,
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type OutgoingHttpHeaders,
  type ServerHttp2Stream,
} from 'node:http2'
import { detachedStream } from './detached-stream.ts'
import { endsStream } from './http2-flags.ts'
import { readHttp2Request, type Http2Request } from './http2-request.ts'
import type { ServedRequests } from './intercepted-connection.ts'
import { relayHttp2Response } from './relay-http2-response.ts'
import { RequestRefused } from './request-refused.ts'
import { firstOf, writeAll } from './sockets.ts'

const MAX_HEAD = 64 * 1024
const MAX_FIELDS = 1024
const MAX_STREAMS = 1024
/** How many bytes may wait in a stream, and in all streams of a connection together. */
const WINDOW = 1024 * 1024

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
export async function serveHttp2({ guest, rules, connectServer, onRefused }: ServedRequests): Promise<void> {
  const session = performServerHandshake(detachedStream(guest), OPTIONS)
  let server: Promise<ClientHttp2Session> | null = null
  let isRefused = false
  session.setLocalWindowSize(WINDOW)
  session.on('error', end)
  session.on('stream', (stream, _headers, flags, rawHeaders) => {
    stream.on('error', () => stream.destroy())
    serve(stream, rawHeaders, { hasBody: !endsStream(flags) }).catch((error: unknown) => {
      if (error instanceof RequestRefused) refuse(error)
      else if (!stream.closed) stream.close(constants.NGHTTP2_INTERNAL_ERROR)
    })
  })
  if (!guest.closed) await firstOf(guest, ['close'])
  session.destroy()
  const opened = await (server as Promise<ClientHttp2Session> | null)?.catch(() => null)
  opened?.destroy()

  async function serve(
    stream: ServerHttp2Stream,
    rawHeaders: readonly string[],
    { hasBody }: { readonly hasBody: boolean },
  ): Promise<void> {
    const request = readHttp2Request(rawHeaders, rules)
    const trailers = hasBody ? takeTrailers(stream, { request, refuse }) : () => ({})
    server ??= openServer()
    const client = await server
    if (stream.closed) return
    const upstream = client.request(request.rawHeaders, { endStream: !hasBody, waitForTrailers: hasBody })
    upstream.on('error', () => upstream.destroy())
    upstream.on('wantTrailers', () => {
      if (!upstream.destroyed) upstream.sendTrailers(trailers())
    })
    stream.on('close', () => {
      if (!upstream.closed) upstream.close(stream.rstCode)
    })
    relayHttp2Response(upstream, stream)
    if (hasBody) await relayBody(stream, upstream, request.checkBody)
  }

  async function openServer(): Promise<ClientHttp2Session> {
    const socket = detachedStream(await connectServer(['h2']))
    const client = connect('http://server', { ...OPTIONS, createConnection: () => socket })
    client.on('error', end)
    for (const event of ['close', 'goaway'] as const)
      client.on(event, () => {
        session.close()
      })
    await firstOf(client, ['connect', 'close'])
    client.setLocalWindowSize(WINDOW)
    return client
  }

  function refuse(error: RequestRefused): void {
    if (!isRefused) onRefused(error)
    isRefused = true
    end()
  }

  function end(): void {
    session.destroy()
    guest.destroy()
  }
}

type Checked = { readonly request: Http2Request; readonly refuse: (error: RequestRefused) => void }

/** Checks the trailers of a request when they arrive, which may be before its body is read. Returns those that arrived. */
function takeTrailers(from: ServerHttp2Stream, { request, refuse }: Checked): () => OutgoingHttpHeaders {
  let trailers: OutgoingHttpHeaders = {}
  from.on('trailers', (headers) => {
    try {
      request.checkTrailers(Object.entries(headers).flatMap(([name, value]) => [name, String(value)]))
      trailers = { ...headers }
    } catch (error) {
      if (error instanceof RequestRefused) refuse(error)
    }
  })
  return () => trailers
}

async function relayBody(
  from: ServerHttp2Stream,
  to: ClientHttp2Stream,
  check: (bytes: Buffer) => void,
): Promise<void> {
  for await (const bytes of from.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    check(bytes)
    if (!to.writable) return // the server answered without reading all of it
    await writeAll(to, [bytes])
  }
  to.end()
}
