import { setImmediate } from 'node:timers/promises'
import { makeSemaphore } from './semaphore.ts'

/**
 * The size of a text or body from which work on it is spread over several turns of the event loop, in characters or bytes. Work on
 * a smaller one takes no longer than serving a usual request.
 */
export const LARGE_TEXT = 64 * 1024

/** The event loop is the process's, and so are its turns. */
const turns = makeSemaphore(1)

/**
 * Waits for a turn of the event loop that no other caller gets, so that other requests are served in between. If steps of several
 * large requests shared a turn, their times would add up: beside creates of 4 MiB, the p99 of others was 82, 90 and 102 ms, and is 55, 61
 * and 80 (2026-11, in turn, 2 cores).
 */
export function nextTurn(): Promise<void> {
  return turns.run(() => setImmediate())
}

/**
 * How much of a large text or buffer is worked on in one turn, in characters or bytes. To encode, hash, copy or seal 4
 * MiB took 6 to 13 ms each (2026-11).
 */
export const PIECE_SIZE = 512 * 1024

/** Calls `step` for each piece, a turn of the event loop for each but the first. */
export async function eachInTurns<Piece>(pieces: Iterable<Piece>, step: (piece: Piece) => void): Promise<void> {
  let isFirst = true
  for (const piece of pieces) {
    if (!isFirst) await nextTurn()
    isFirst = false
    step(piece)
  }
}

/** A buffer in pieces for one turn each. They share its memory. */
export function splitBuffer(buffer: Buffer): readonly Buffer[] {
  const count = Math.ceil(buffer.length / PIECE_SIZE)
  return Array.from({ length: count }, (_, n) => buffer.subarray(n * PIECE_SIZE, (n + 1) * PIECE_SIZE))
}

/** A text in pieces for one turn each. No piece ends within a surrogate pair. V8 joins the parts of the text for the first one. */
export function* textPieces(text: string): Generator<string> {
  for (let at = 0; at < text.length;) {
    const isPair = /^[\ud800-\udbff][\udc00-\udfff]$/.test(text.slice(at + PIECE_SIZE - 1, at + PIECE_SIZE + 1))
    const end = at + PIECE_SIZE + (isPair ? 1 : 0)
    yield text.slice(at, end)
    at = end
  }
}

/** Encodes a large text in UTF-8, in several turns. */
export async function encodeInTurns(text: string): Promise<readonly Buffer[]> {
  const pieces: Buffer[] = []
  await nextTurn()
  await eachInTurns(textPieces(text), (piece) => void pieces.push(Buffer.from(piece)))
  return pieces
}
