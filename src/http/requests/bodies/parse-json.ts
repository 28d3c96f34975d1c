import { isUtf8 } from 'node:buffer'
import { parseInTurns } from '../../../control/requests/parse-in-turns.ts'
import { findBadStructure, type BadStructure } from '../../../domain/json/json-structure.ts'
import { mayBeUnstorable, parseText, refuse, requireStorable } from '../../../domain/json/json-values.ts'

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

/** The same for a large body, as `parseInTurns` does it. */
export async function parseLargeJson(body: Buffer, pieceChars?: number): Promise<unknown> {
  return parseInTurns(textOf(body), pieceChars)
}

function textOf(body: Buffer): string {
  if (!isUtf8(body)) refuse('body', 'bytes that are not UTF-8', 'JSON in UTF-8')
  return body.toString('utf8')
}

function refuseBad(bad: BadStructure | null): void {
  if (bad !== null) refuse(bad.field, bad.seen, bad.accepted)
}
