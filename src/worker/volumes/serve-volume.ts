import { createServer, type IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { type Duplex, finished, type Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import {
  CONTENT_UPGRADE,
  decodeVolumePath,
  VOLUME_PATH_HEADER,
  VOLUME_RECURSIVE_HEADER,
  VOLUME_ROUTES,
  VOLUME_TARGET_HEADER,
  VolumeFileError,
  type VolumeFiles,
} from '../../contract/volumes/volume-protocol.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import { FileContent } from './file-streams.ts'
import { ReceivedContent } from './received-content.ts'

type ServeVolumeOptions = {
  readonly log: Log
  /** Called after each request that may have changed the volume, even if it failed. */
  readonly onChanged: () => void
  /** Releases the bytes of an upload that are written, if the stream reads into buffers that it uses again. */
  readonly release?: (piece: Buffer) => void
  /** How long the stream may be idle while no file operation is running. */
  readonly idleMs?: number
}

const IDLE_LIMIT_MS = 60_000
/** Node's error codes for a stream that ended too early. */
const DISCONNECT_CODES: readonly string[] = ['ERR_STREAM_PREMATURE_CLOSE', 'ECONNRESET', 'EPIPE', 'ABORT_ERR']

/**
 * Serves a volume's files over a stream with the protocol of `volume-protocol.ts`: HTTP/1.1 with this side as the
 * server. Content is transferred at the pace of the slower side and is not buffered. Resolves when the stream has ended
 * and all its requests are complete. If the stream breaks, its write is aborted. An idle stream is destroyed. Faults of
 * this machine are logged here, without details for the client.
 */
export async function serveVolume(stream: Duplex, files: VolumeFiles, options: ServeVolumeOptions): Promise<void> {
  const server = createServer({ requestTimeout: 0, headersTimeout: 0, keepAliveTimeout: 0 })
  const pending = new Set<Promise<void>>()
  const ended = new Promise<void>((resolve) => {
    // A client ends its side only when it closes the stream, so the end of input means that the client has
    // disconnected.
    finished(stream, { writable: false }, () => {
      resolve()
    })
  })
  const begin = (exchange: Pick<Exchange, 'request' | 'response' | 'content'>): void => {
    const served = serve({ ...exchange, files, idle, ...options }).finally(() => pending.delete(served))
    pending.add(served)
  }
  server.on('request', (request, response) => {
    begin({ request, response, content: null })
  })
  server.on('upgrade', (request, socket, first) => {
    const response = new ServerResponse(request)
    response.assignSocket(socket as Socket) // only uses what each stream has
    begin({ request, response, content: new ReceivedContent(socket, { first, release: options.release ?? forget }) })
  })
  server.emit('connection', stream)
  const idle = makeIdleTimeout(stream, options.idleMs ?? IDLE_LIMIT_MS)
  await ended
  stream.destroy()
  await Promise.all(pending)
}

const forget = (): void => undefined

type Exchange = Pick<ServeVolumeOptions, 'log' | 'onChanged'> & {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** What follows the request. Null if it is no upload. */
  readonly content: Readable | null
  readonly files: VolumeFiles
  readonly idle: IdleTimeout
}

type RouteName = keyof typeof VOLUME_ROUTES
type Route = { readonly isChange: boolean; readonly answer: (exchange: Exchange) => Promise<void> }

const ROUTES: Readonly<Record<RouteName, Route>> = {
  list: reading((files, path) => files.list(path)),
  stat: reading((files, path) => files.stat(path)),
  exists: reading((files, path) => files.exists(path)),
  read: { isChange: false, answer: sendContent },
  write: { isChange: true, answer: receiveContent },
  mkdir: changing(({ files, request }) => files.mkdir(pathIn(request, VOLUME_PATH_HEADER))),
  copy: changing(({ files, request }) => files.copy(...pathsIn(request))),
  rename: changing(({ files, request }) => files.rename(...pathsIn(request))),
  remove: changing(({ files, request }) =>
    files.remove(pathIn(request, VOLUME_PATH_HEADER), { isRecursive: isRecursive(request) }),
  ),
}

function reading(ask: (files: VolumeFiles, path: string) => Promise<unknown>): Route {
  return {
    isChange: false,
    async answer({ request, response, files, idle }) {
      const path = pathIn(request, VOLUME_PATH_HEADER)
      sendJson(response, 200, await idle.during(() => ask(files, path)))
    },
  }
}

function changing(change: (exchange: Exchange) => Promise<void>): Route {
  return {
    isChange: true,
    async answer(exchange) {
      await exchange.idle.during(() => change(exchange))
      sendJson(exchange.response, 200, {})
    },
  }
}

/** Never rejects. */
async function serve(exchange: Exchange): Promise<void> {
  const { request, response, log, onChanged } = exchange
  const route = routeOf(request)
  if (route === null || (route === ROUTES.write) !== (request.headers.upgrade === CONTENT_UPGRADE)) {
    sendJson(response, 404, { code: 'not_found', message: 'no such route' })
    return
  }
  try {
    await route.answer(exchange)
  } catch (error) {
    answerError(exchange, error)
  }
  try {
    if (route.isChange) onChanged()
  } catch (error) {
    log.error({ error }, 'a change of a volume could not be reported')
  }
}

function routeOf({ method, url }: IncomingMessage): Route | null {
  for (const name of Object.keys(ROUTES).filter((key): key is RouteName => key in VOLUME_ROUTES))
    if (VOLUME_ROUTES[name].method === method && VOLUME_ROUTES[name].url === url) return ROUTES[name]
  return null
}

async function sendContent({ request, response, files, idle }: Exchange): Promise<void> {
  const path = pathIn(request, VOLUME_PATH_HEADER)
  const { sizeBytes, content } = await idle.during(() => files.read(path))
  response.writeHead(200, { 'content-type': 'application/octet-stream', 'content-length': sizeBytes })
  if (content instanceof FileContent) return await content.sendTo(response, idle.touch)
  content.on('data', idle.touch)
  await pipeline(content, response)
}

async function receiveContent({ request, response, files, content }: Exchange): Promise<void> {
  if (content === null) throw new Error('an upload has no content')
  sendJson(response, 200, await files.write(pathIn(request, VOLUME_PATH_HEADER), content))
}

function answerError({ request, response, content, log }: Exchange, error: unknown): void {
  // Reads and drops the rest of an upload. The client may send the whole upload before it reads the answer, and the end
  // of the stream only arrives after it.
  content?.resume()
  if (error instanceof VolumeFileError && !response.headersSent) {
    sendJson(response, 422, { code: error.code, message: error.message })
    return
  }
  if (!isDisconnect(error))
    log.error({ error, method: request.method, url: request.url }, 'a request for the files of a volume failed')
  if (response.headersSent) response.destroy()
  else sendJson(response, 500, { code: 'internal_error', message: 'the worker failed to perform the file operation' })
}

/** Whether an error means that the client closed the stream, for example to cancel an upload. That is not a fault. */
function isDisconnect(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  return hasErrorCode(error, ...DISCONNECT_CODES) || isDisconnect(error.cause)
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  if (response.destroyed) return
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

function pathsIn(request: IncomingMessage): [from: string, to: string] {
  return [pathIn(request, VOLUME_PATH_HEADER), pathIn(request, VOLUME_TARGET_HEADER)]
}

function pathIn({ headers }: IncomingMessage, name: string): string {
  const header = headers[name]
  const path = typeof header === 'string' ? decodeVolumePath(header) : null
  if (path === null)
    throw new VolumeFileError('invalid_volume_path', `the header ${name} must be a UTF-8 path in base64url`)
  return path
}

function isRecursive({ headers }: IncomingMessage): boolean {
  const header = headers[VOLUME_RECURSIVE_HEADER]
  if (header !== 'true' && header !== 'false')
    throw new VolumeFileError('invalid_volume_path', `the header ${VOLUME_RECURSIVE_HEADER} must be true or false`)
  return header === 'true'
}

/** A timeout that destroys an idle stream. */
type IdleTimeout = {
  /** Restarts the timeout, as data on the stream does. */
  readonly touch: () => void
  /** Runs `work` and doesn't destroy the stream meanwhile, even if the stream is idle. */
  during<T>(work: () => Promise<T>): Promise<T>
}

/** Destroys `stream` after `idleMs` without data, `touch` or work. The timeout ends with the stream. */
function makeIdleTimeout(stream: Duplex, idleMs: number): IdleTimeout {
  let working = 0
  const timer = setTimeout(() => {
    if (working > 0) timer.refresh()
    else stream.destroy(new Error(`the stream was idle for ${String(idleMs)} ms`))
  }, idleMs)
  const touch = (): void => {
    if (!stream.destroyed) timer.refresh()
  }
  stream.on('data', touch)
  stream.once('close', () => {
    clearTimeout(timer)
  })
  return {
    touch,
    async during(work) {
      working += 1
      try {
        return await work()
      } finally {
        working -= 1
        touch()
      }
    },
  }
}
