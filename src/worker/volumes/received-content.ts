import { type Duplex, finished, Readable } from 'node:stream'
import { FRAME_HEAD_BYTES } from '../../contract/volumes/volume-protocol.ts'

/** The largest length of a frame. Larger numbers are not exact. */
const FRAME_MAX_BYTES = BigInt(Number.MAX_SAFE_INTEGER)

/**
 * The content of an upload, out of the frames that arrive on a stream (`volume-protocol.ts`). Each piece is a part of a buffer that the
 * stream read into. The reader may release pieces once it is done with them, and then the buffer is used again. Fails if the
 * stream ends too early.
 */
export class ReceivedContent extends Readable {
  /** Releases a piece. Nobody may use its bytes afterwards. */
  readonly release: (piece: Buffer) => void
  readonly #stream: Duplex
  readonly #head = Buffer.alloc(FRAME_HEAD_BYTES)
  #headBytes = 0
  /** The bytes of the frame that have not arrived yet. */
  #missing = 0
  #isComplete = false

  /** `first`: bytes that were read from the stream before. */
  constructor(stream: Duplex, { first, release }: Received) {
    super()
    this.#stream = stream
    this.release = release
    this.on('error', () => undefined) // it may fail while nobody reads it
    if (first.length > 0) this.#take(first)
    stream.on('data', (chunk: Buffer) => {
      this.#take(chunk)
    })
    finished(stream, { writable: false }, (error) => {
      if (!this.#isComplete) this.destroy(error ?? endedEarly())
    })
  }

  override _read(): void {
    this.#stream.resume()
  }

  #take(chunk: Buffer): void {
    for (let at = 0; at < chunk.length && !this.#isComplete;) {
      const part = chunk.subarray(at, at + (this.#missing || FRAME_HEAD_BYTES - this.#headBytes))
      at += part.length
      if (this.#missing === 0) this.#takeHead(part)
      else {
        this.#missing -= part.length
        if (!this.push(part)) this.#stream.pause()
      }
    }
  }

  #takeHead(part: Buffer): void {
    this.#headBytes += part.copy(this.#head, this.#headBytes)
    this.release(part)
    if (this.#headBytes < FRAME_HEAD_BYTES) return
    this.#headBytes = 0
    const bytes = this.#head.readBigUInt64BE()
    if (bytes > FRAME_MAX_BYTES) return void this.destroy(new Error('a frame of content is too long'))
    this.#missing = Number(bytes)
    if (this.#missing > 0) return
    this.#isComplete = true
    this.push(null)
  }
}

/** Has the code of a request that Node's HTTP server saw end early, because it means the same: the client left. */
function endedEarly(): Error {
  return Object.assign(new Error('the stream ended before its content'), { code: 'ECONNRESET' })
}

type Received = { readonly first: Buffer; readonly release: (piece: Buffer) => void }
