import { types, type CustomTypesConfig } from 'pg'
import { parseJsonText } from '../../domain/exact-json.ts'

/** A column's value doesn't fit this program's types, such as a count beyond 2^53. */
export class ColumnValueError extends Error {}

/** PostgreSQL's ids of its types (`pg_type.oid`). They are part of the wire protocol and never change. */
const OID = { int8: 20, json: 114, numeric: 1700, date: 1082, timestamptz: 1184, jsonb: 3802 } as const

/**
 * The parsers of column values: int8 becomes a number, timestamptz a Date, json and jsonb parsed JSON. date and numeric
 * stay text, because a conversion would lose information. Cast a column to text to get its raw form. The parsers apply
 * to the connections that get this object, not to the whole process.
 */
export const columnTypes: CustomTypesConfig = {
  getTypeParser: (oid: number, format?: 'text' | 'binary') =>
    format === 'binary' ? types.getTypeParser(oid, 'binary') : (PARSERS.get(oid) ?? types.getTypeParser(oid, 'text')),
}

const parseTimestamp = types.getTypeParser(OID.timestamptz, 'text')

const PARSERS: ReadonlyMap<number, (text: string) => unknown> = new Map<number, (text: string) => unknown>([
  [OID.int8, parseInt8],
  [OID.json, parseJsonText],
  [OID.jsonb, parseJsonText],
  [OID.numeric, keepText],
  [OID.date, keepText],
  [OID.timestamptz, parseInstant],
])

function parseInt8(text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value))
    throw new ColumnValueError(`a column contains ${text}, beyond 2^53: select it as text`)
  return value
}

function keepText(text: string): string {
  return text
}

function parseInstant(text: string): Date {
  const instant: unknown = parseTimestamp(text)
  if (!(instant instanceof Date))
    throw new ColumnValueError(`a column contains the time ${text}, which is beyond the range of Date`)
  return instant
}
