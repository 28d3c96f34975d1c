import { Socket } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { LARGE_TEXT } from '../../lib/turns/next-turn.ts'

type Piece = { readonly chunk: Buffer | string; readonly encoding: BufferEncoding }
/** What Node calls the encoding of bytes. Its types leave it out. */
const BYTES = 'buffer' as BufferEncoding

type OnWritten = (error?: Error | null) => void

/** A socket of a connection to the database. */
export class DatabaseSocket extends Socket {
  /**
   * Writes what is large in pieces, one in each turn of the event loop. The kernel takes bytes for as long as the
   * database reads them meanwhile, so 8 MiB held the thread for up to 24 ms (2026-11). A piece takes 0.1 ms, so it
   * doesn't wait for a turn of its own, as other large steps do.
   */
  override _writev(pieces: Piece[], onWritten: OnWritten): void {
    const sizeBytes = pieces.reduce((sum, { chunk }) => sum + chunk.length, 0)
    if (sizeBytes <= LARGE_TEXT) super._writev?.(pieces, onWritten)
    else this.#writeInTurns(pieces).then(() => onWritten(), onWritten)
  }

  override _write(chunk: Buffer | string, encoding: BufferEncoding, onWritten: OnWritten): void {
    if (chunk.length <= LARGE_TEXT) super._write(chunk, encoding, onWritten)
    else this._writev([{ chunk, encoding }], onWritten)
  }

  async #writeInTurns(pieces: readonly Piece[]): Promise<void> {
    for (const { chunk, encoding } of pieces) {
      const bytes = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk
      for (let at = 0; at < bytes.length; at += LARGE_TEXT) {
        await setImmediate()
        await this.#writeNow(bytes.subarray(at, at + LARGE_TEXT))
      }
    }
  }

  #writeNow(piece: Buffer): Promise<void> {
    return new Promise((resolve, reject) => {
      super._write(piece, BYTES, (error) => (error instanceof Error ? reject(error) : resolve()))
    })
  }
}
