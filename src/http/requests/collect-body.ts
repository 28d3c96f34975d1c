import { errorCodes, type FastifyRequest } from 'fastify'
import type { IncomingMessage } from 'node:http'
import { totalBytes } from '../../lib/buffer-pieces.ts'
import { PIECE_SIZE, nextTurn } from '../../lib/next-turn.ts'

/**
 * Reads a body into memory, in the pieces that arrive. `done` is called once, with Fastify's error if the body has more bytes than its
 * route accepts, or with that of the connection.
 */
export function collectBody(
  request: FastifyRequest,
  payload: IncomingMessage,
  done: (error: Error | null, pieces: readonly Buffer[]) => void,
): void {
  const most = request.routeOptions.bodyLimit ?? 0
  const pieces: Buffer[] = []
  let sizeBytes = 0
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
    else pieces.push(piece)
  }
  payload.on('data', onData).on('end', onEnd).on('error', end)
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
