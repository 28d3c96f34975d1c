import { errorCodes, type FastifyRequest } from 'fastify'
import type { IncomingMessage } from 'node:http'
import { refusalProblem } from '../../../domain/refusal.ts'
import { totalBytes } from '../../../lib/streams/buffer-pieces.ts'
import { ChunkedRequest } from './chunked-request.ts'
import { PIECE_SIZE, nextTurn } from '../../../lib/turns/next-turn.ts'

/** The fewest bytes that the chunks of a body may have on average, beyond the first ones. A packet of the Internet has five times as many. */
const CHUNK_MIN_BYTES = 256
const FIRST_CHUNKS = 1024

/** How many pieces are joined to one. Each takes 200 bytes of memory beside its own. */
const JOINED_PIECES = 256

/**
 * Reads a body into memory, in the pieces that arrive. `done` is called once, with Fastify's error if the body has more bytes than its
 * route accepts, or with that of the connection. A body of very small chunks is refused: with a byte in each, 4 MiB took 7.5 s
 * of the server's thread and 0.9 GB of memory (2026-11).
 */
export function collectBody(
  request: FastifyRequest,
  payload: IncomingMessage,
  done: (error: Error | null, pieces: readonly Buffer[]) => void,
): void {
  const most = request.routeOptions.bodyLimit ?? 0
  const chunksMax = FIRST_CHUNKS + most / CHUNK_MIN_BYTES
  const pieces: Buffer[] = []
  let [sizeBytes, joined] = [0, 0]
  if (Number(request.headers['content-length'] ?? 0) > most) {
    done(new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE(), pieces)
    return
  }
  const end = (error: Error | null): void => {
    payload.off('data', onData).off('end', onEnd).off('error', end)
    done(error, pieces)
  }
  const onEnd = (): void => end(null)
  const onData = (piece: Buffer): void => {
    sizeBytes += piece.length
    if (sizeBytes > most) end(new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE())
    else if (payload instanceof ChunkedRequest && payload.chunkCount > chunksMax) end(refuseChunks(chunksMax))
    else if (pieces.push(piece) - joined === JOINED_PIECES) joined = pieces.push(Buffer.concat(pieces.splice(joined)))
  }
  payload.on('data', onData).on('end', onEnd).on('error', end)
}

function refuseChunks(most: number): Error {
  const accepted = `at most ${String(most)} chunks; a body of larger chunks needs fewer`
  return refusalProblem({ code: 'invalid_request', field: 'body', seen: 'a body in more chunks', accepted })
}

/** Joins the pieces of a large body, in several turns of the event loop. */
export async function joinInTurns(pieces: readonly Buffer[]): Promise<Buffer> {
  const joined = Buffer.allocUnsafeSlow(totalBytes(pieces))
  let [at, pauseAt] = [0, PIECE_SIZE]
  for (const piece of pieces) {
    if (at >= pauseAt) {
      await nextTurn()
      pauseAt = at + PIECE_SIZE
    }
    at += piece.copy(joined, at)
  }
  return joined
}
