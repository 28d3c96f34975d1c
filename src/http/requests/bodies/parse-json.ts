import { isUtf8 } from 'node:buffer'
import { nextTurn } from '../../../lib/turns/next-turn.ts'
import { makeJsonPieces } from './json-pieces.ts'
import { beginCheck, checkStructure, findBadStructure, type BadStructure } from './json-structure.ts'
import { mayBeUnstorable, parseText, refuse, requireStorable } from './json-values.ts'

/**
 * Parses strict JSON. Throws `invalid_request` for a text that is not JSON in UTF-8 or is nested too deeply. It also
 * refuses a repeated key, `__proto__`, NUL, and half of a surrogate pair, because data would be lost or a later step
 * would fail.
 */
export function parseJson(body: Buffer): unknown {
  const text = textOf(body)
  refuseBad(findBadStructure(text))
  const value = parseText(text)
  if (mayBeUnstorable(text)) requireStorable(value, [])
  return value
}

/** How many characters of a large body are checked and parsed in one turn of the event loop. */
const PIECE_CHARS = 128 * 1024

/**
 * The same for a large body, which is checked and parsed in pieces, each in a turn of the event loop. A long list of
 * bytes becomes a `ByteList`. Of several faults, another one may be named.
 */
export async function parseLargeJson(body: Buffer, pieceChars = PIECE_CHARS): Promise<unknown> {
  const text = textOf(body)
  const check = beginCheck()
  const pieces = makeJsonPieces(text, pieceChars)
  while (check.at < text.length) {
    await nextTurn()
    refuseBad(checkStructure(text, check, check.at + pieceChars, pieces))
  }
  await nextTurn()
  return pieces.finish()
}

function textOf(body: Buffer): string {
  if (!isUtf8(body)) refuse('body', 'bytes that are not UTF-8', 'JSON in UTF-8')
  return body.toString('utf8')
}

function refuseBad(bad: BadStructure | null): void {
  if (bad !== null) refuse(bad.field, bad.seen, bad.accepted)
}
