import { once } from 'node:events'
import { IncomingMessage, request as startRequest, type ClientRequest } from 'node:http'
import { finished, Transform, type Duplex, type Readable } from 'node:stream'
import {
  CONTENT_UPGRADE,
  encodeVolumePath,
  frameHead,
  VOLUME_FILE_PROBLEMS,
  VOLUME_PATH_HEADER,
  VOLUME_RECURSIVE_HEADER,
  VOLUME_ROUTES,
  VOLUME_TARGET_HEADER,
  VolumeFileError,
  type VolumeFile,
  type VolumeFileProblem,
  type VolumeFiles,
} from '../../contract/volumes/volume-protocol.ts'
import { parseVolumePath } from '../../domain/volumes/volume-path.ts'

/**
 * How long a worker may take for one operation, without the transfer of content, in milliseconds. The worker's own
 * limit is 600 s.
 */
const REPLY_LIMIT_MS = 660_000
/** The longest reply that is read, in bytes. The longest list from a worker has about 25 MB. */
const REPLY_LIMIT_BYTES = 64 * 1024 * 1024

/**
 * Makes a client for the files of a volume on a worker. Each operation opens a stream, speaks HTTP over it, and
 * destroys the stream at the end. The worker's refusals reject with `VolumeFileError`. An invalid path is refused
 * before a stream is opened. Read or destroy the content that `read` returns. The content that you pass to `write`
 * stays open when the write is refused.
 */
export function makeVolumeClient(open: () => Promise<Duplex>): VolumeFiles {
  const ask = (route: Route, paths: Paths): Promise<unknown> => converse(open, { route, paths }, jsonOf)
  return {
    // These replies come from this program's own worker, which speaks the same protocol version.
    list: async (path) => (await ask(VOLUME_ROUTES.list, { path })) as readonly VolumeFile[],
    stat: async (path) => (await ask(VOLUME_ROUTES.stat, { path })) as VolumeFile,
    exists: async (path) => (await ask(VOLUME_ROUTES.exists, { path })) === true,
    read: (path) => read(open, path),
    write: async (path, content) => {
      const written = await converse(open, { route: VOLUME_ROUTES.write, paths: { path }, content }, jsonOf)
      return written as { sizeBytes: number } // from this program's own worker, as in `list`
    },
    mkdir: async (path) => void (await ask(VOLUME_ROUTES.mkdir, { path })),
    copy: async (path, target) => void (await ask(VOLUME_ROUTES.copy, { path, target })),
    rename: async (path, target) => void (await ask(VOLUME_ROUTES.rename, { path, target })),
    remove: async (path, { isRecursive }) => void (await ask(VOLUME_ROUTES.remove, { path, isRecursive })),
  }
}

type Open = () => Promise<Duplex>
type Route = (typeof VOLUME_ROUTES)[keyof typeof VOLUME_ROUTES]
type Paths = { readonly path: string; readonly target?: string; readonly isRecursive?: boolean }
type Question = { readonly route: Route; readonly paths: Paths; readonly content?: Readable }

async function read(open: Open, path: string): Promise<{ sizeBytes: number; content: Readable }> {
  const headers = headersOf({ path })
  const duplex = await open()
  try {
    const response = await exchange(duplex, { route: VOLUME_ROUTES.read, headers })
    response.once('close', () => duplex.destroy())
    return { sizeBytes: Number(response.headers['content-length']), content: response }
  } catch (error) {
    duplex.destroy()
    throw error
  }
}

async function converse<T>(
  open: Open,
  { route, paths, content }: Question,
  use: (response: IncomingMessage) => Promise<T>,
): Promise<T> {
  const headers = headersOf(paths)
  const duplex = await open()
  try {
    return await use(await exchange(duplex, { route, headers, ...(content === undefined ? {} : { content }) }))
  } finally {
    duplex.destroy()
  }
}

type Headers = Readonly<Record<string, string>>

/** Sends a request over a stream. Resolves with the reply if it is successful, before its content is read. */
async function exchange(
  duplex: Duplex,
  { route, headers, content }: { readonly route: Route; readonly headers: Headers; readonly content?: Readable },
): Promise<IncomingMessage> {
  duplex.on('error', () => duplex.destroy()) // the request gets the error; after its end nobody needs it
  const request = startRequest({
    method: route.method,
    path: route.url,
    headers: content === undefined ? headers : { ...headers, connection: 'upgrade', upgrade: CONTENT_UPGRADE },
    createConnection: () => duplex,
  })
  const replied = replyTo(request)
  request.end()
  if (content !== undefined) {
    await Promise.race([once(request, 'finish'), replied])
    await send(duplex, content, replied)
  }
  const response = await within(duplex, replied)
  if (response.statusCode === 200) return response
  throw refusalOf(response.statusCode, await jsonOf(response))
}

function replyTo(request: ClientRequest): Promise<IncomingMessage> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  request.once('response', resolve)
  request.on('error', (error) => {
    reject(new Error('the stream to the worker failed', { cause: error }))
  })
  request.once('close', () => {
    reject(new Error('the stream to the worker ended without a reply')) // has no effect after a reply
  })
  return promise
}

/** Sends content at the worker's pace, until everything is sent or the worker has replied. Leaves `content` open. */
async function send(duplex: Duplex, content: Readable, replied: Promise<IncomingMessage>): Promise<void> {
  const { promise: failed, reject } = Promise.withResolvers<never>()
  const stopListening = finished(content, { writable: false }, (error) => {
    if (error !== null && error !== undefined) reject(new Error('the content failed', { cause: error }))
  })
  const frames = content.pipe(new Frames(lengthOf(content)))
  const sent = once(frames, 'end')
  frames.pipe(duplex, { end: false })
  try {
    await Promise.race([sent, replied, failed])
  } finally {
    stopListening()
    content.unpipe(frames)
    frames.destroy()
  }
}

/** The length of a request's body, if it says one. */
function lengthOf(content: Readable): number | null {
  const length = content instanceof IncomingMessage ? content.headers['content-length'] : undefined
  return length === undefined ? null : Number(length)
}

/** A piece below this length is a small one, in bytes. */
const SMALL_PIECE_BYTES = 256
/** How many small pieces are passed on before the next pause. */
const SMALL_PIECES = 256
/** How long content of small pieces pauses, in milliseconds. */
const PAUSE_MS = 100

/**
 * Puts content into the frames of `volume-protocol.ts`: one for all if its length is known, and otherwise one for each piece. A client may
 * send each byte as a chunk. Content of small pieces is passed on at a bounded rate, because a read of 64 KiB has up to 10,000 of
 * them, and each takes the server some 2 us (2026-11).
 */
class Frames extends Transform {
  readonly #isOne: boolean
  #smallPieces = 0

  constructor(bytes: number | null) {
    super()
    this.#isOne = bytes !== null
    if (bytes !== null && bytes > 0) this.push(frameHead(bytes))
  }

  override _transform(piece: Buffer, _encoding: string, done: (error: null, piece: Buffer) => void): void {
    if (!this.#isOne) this.push(frameHead(piece.length))
    if (piece.length < SMALL_PIECE_BYTES) this.#smallPieces += 1
    if (this.#smallPieces < SMALL_PIECES) {
      done(null, piece)
      return
    }
    this.#smallPieces = 0
    setTimeout(() => {
      if (!this.destroyed) done(null, piece)
    }, PAUSE_MS)
  }

  override _flush(done: (error: null, end: Buffer) => void): void {
    done(null, frameHead(0))
  }
}

async function within(duplex: Duplex, replied: Promise<IncomingMessage>): Promise<IncomingMessage> {
  const timer = setTimeout(() => duplex.destroy(new Error('the worker took too long')), REPLY_LIMIT_MS)
  try {
    return await replied
  } finally {
    clearTimeout(timer)
  }
}

function headersOf({ path, target, isRecursive }: Paths): Headers {
  return {
    [VOLUME_PATH_HEADER]: headerOf(path),
    ...(target === undefined ? {} : { [VOLUME_TARGET_HEADER]: headerOf(target) }),
    ...(isRecursive === undefined ? {} : { [VOLUME_RECURSIVE_HEADER]: String(isRecursive) }),
    connection: 'keep-alive', // this side ends the stream, so that a refusal during an upload is not lost
  }
}

function headerOf(path: string): string {
  const parsed = parseVolumePath(path)
  if ('refused' in parsed) throw new VolumeFileError('invalid_volume_path', parsed.refused)
  return encodeVolumePath(path)
}

async function jsonOf(response: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = []
  let sizeBytes = 0
  const pieces: AsyncIterable<Buffer> = response
  for await (const piece of pieces) {
    chunks.push(piece)
    sizeBytes += piece.length
    if (sizeBytes > REPLY_LIMIT_BYTES)
      throw new Error(`a worker replied with more than ${String(REPLY_LIMIT_BYTES)} bytes`)
  }
  return JSON.parse(Buffer.concat(chunks).toString('utf8'))
}

function refusalOf(status: number | undefined, body: unknown): Error {
  const reply = typeof body === 'object' && body !== null ? body : {}
  const code = 'code' in reply ? reply.code : null
  const message = 'message' in reply ? String(reply.message) : ''
  const isProblem = (known: VolumeFileProblem): boolean => known === code
  const problem = status === 422 ? VOLUME_FILE_PROBLEMS.find(isProblem) : undefined
  if (problem !== undefined) return new VolumeFileError(problem, message)
  return new Error(`a worker failed a file operation: ${String(status)} ${message}`)
}
