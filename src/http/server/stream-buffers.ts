import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { encodeInTurns, nextTurn } from '../../lib/turns/next-turn.ts'

/** How many bytes are written at once. The kernel copies them in some 0.05 ms (2026-11). */
const PIECE_BYTES = 64 * 1024

/** From this length on, JSON text is sent in pieces. A stream of pieces costs more than most replies. */
export const IN_PIECES_FROM = 256 * 1024

/**
 * A stream of buffers in small pieces, with other requests served in between. It stops as soon as the client doesn't read. A large
 * reply that is sent at once is copied to the kernel as far as that has space, which holds up all other requests meanwhile.
 */
export function streamBuffers(buffers: readonly Buffer[]): Readable {
  return Readable.from(piecesOf(buffers), { objectMode: false, highWaterMark: PIECE_BYTES })
}

/**
 * Ends a response with a text, a large one in pieces. Nobody waits for its end: if the client leaves, the rest is
 * dropped. Pass the text in UTF-8 too if it is encoded already.
 */
export function endWithText(response: ServerResponse, text: string, encoded?: readonly Buffer[]): void {
  if (text.length <= IN_PIECES_FROM) response.end(text)
  else void endWithPieces(response, text, encoded)
}

async function endWithPieces(response: ServerResponse, text: string, encoded?: readonly Buffer[]): Promise<void> {
  streamBuffers(encoded ?? (await encodeInTurns(text))).pipe(response)
}

async function* piecesOf(buffers: readonly Buffer[]): AsyncGenerator<Buffer> {
  for (const buffer of buffers) {
    for (let at = 0; at < buffer.length; at += PIECE_BYTES) {
      await nextTurn()
      yield buffer.subarray(at, at + PIECE_BYTES)
    }
  }
}
