import { IncomingMessage } from 'node:http'

/** How many chunks of a refused request are read. A small body is read to its end. */
const REFUSED_CHUNKS = 64

/** A request whose chunks are counted. A body with a length has none. */
export abstract class ChunkedRequest extends IncomingMessage {
  chunkCount = 0
  /** How many more chunks are read. Null: all. */
  protected chunksLeft: number | null = null

  /** Reads no more than a few chunks, because the request is refused. May be repeated. */
  dropChunks(): void {
    this.chunksLeft ??= REFUSED_CHUNKS
  }
}
