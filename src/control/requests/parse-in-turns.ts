import { makeJsonPieces } from '../../domain/json/json-pieces.ts'
import { beginCheck, checkStructure } from '../../domain/json/json-structure.ts'
import { refuse } from '../../domain/json/json-values.ts'
import { nextTurn } from '../../lib/turns/next-turn.ts'

/** How many characters of a large text are checked and parsed in one turn of the event loop. */
const PIECE_CHARS = 128 * 1024

/**
 * Parses a large JSON text, as `parseJson` of request bodies does, in pieces, each in a turn of the event loop. A long list of bytes
 * becomes a `ByteList`. Of several faults, another one may be named.
 */
export async function parseInTurns(text: string, pieceChars = PIECE_CHARS): Promise<unknown> {
  const check = beginCheck()
  const pieces = makeJsonPieces(text, pieceChars)
  while (check.at < text.length) {
    await nextTurn()
    const bad = checkStructure(text, check, check.at + pieceChars, pieces)
    if (bad !== null) refuse(bad.field, bad.seen, bad.accepted)
  }
  await nextTurn()
  return pieces.finish()
}
