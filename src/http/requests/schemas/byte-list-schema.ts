import type { FuncKeywordDefinition } from 'ajv/dist/2020.js'
import { isListOfBytes } from '../../../domain/byte-lists.ts'

/**
 * Lists of bytes, which can be long. The validator checks each item as its schema says, which took 25 to 230 ms for two
 * million in one turn of the event loop (2026-11). So it only does that for a list that has something else, whose first
 * error it then finds.
 */

const KEYWORD = 'isListOfBytes'

/** A copy of a schema that accepts each list of bytes where it asks for one. */
export function acceptByteLists(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(acceptByteLists)
  if (typeof schema !== 'object' || schema === null) return schema
  if (asksForBytes(schema)) return { if: { [KEYWORD]: true }, else: schema }
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, acceptByteLists(value)]))
}

/** Whether a schema accepts each list of bytes, and nothing else. */
function asksForBytes(schema: object): boolean {
  const { type, items, minItems, maxItems, uniqueItems }: Readonly<Record<string, unknown>> = { ...schema }
  if (type !== 'array' || [minItems, maxItems, uniqueItems].some((limit) => limit !== undefined)) return false
  const { type: itemType, minimum, maximum }: Readonly<Record<string, unknown>> = Object(items)
  return itemType === 'integer' && minimum === 0 && maximum === 255
}

/** The keyword in copies of `acceptByteLists`. */
export const BYTE_LIST_KEYWORD: FuncKeywordDefinition = {
  keyword: KEYWORD,
  schemaType: 'boolean',
  errors: false,
  validate: (_asks: true, value: unknown) => isListOfBytes(value),
}
