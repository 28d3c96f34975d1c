import type { TSchema } from 'typebox'
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import type { Parser } from './schemas/schema-compiler.ts'

/**
 * Parses a query string with the schema of its parameters. Booleans are `true` and `false`, and whole numbers are
 * digits. Throws `invalid_request` for a parameter that is unknown, repeated, malformed, or refused by the schema.
 */
export function parseQuery<Schema extends TSchema>(
  url: string,
  schema: Schema,
  parse: Parser<Schema>,
): ReturnType<Parser<Schema>> {
  const start = url.indexOf('?')
  const values: Record<string, unknown> = Object.create(null)
  if (start === -1) return parse(values)
  for (const pair of url.slice(start + 1).split('&')) {
    if (pair === '') continue
    const [name = '', ...rest] = pair.split('=')
    const key = decode(name)
    const text = decode(rest.join('='))
    if (key in values) refuse(key, 'a second value', 'one value')
    values[key] = readValue(key, text, schema)
  }
  return parse(values)
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '))
  } catch (error) {
    if (!(error instanceof URIError)) throw error
    return refuse('', describeSeen(text), 'percent-encoded UTF-8')
  }
}

function readValue(key: string, text: string, schema: TSchema): unknown {
  if (text.includes('\0')) refuse(key, 'a NUL', 'text without NUL')
  switch (typeOf(schema, key)) {
    case 'boolean':
      if (text !== 'true' && text !== 'false') refuse(key, describeSeen(text), 'true or false')
      return text === 'true'
    case 'integer':
      if (!/^-?\d{1,16}$/.test(text)) refuse(key, describeSeen(text), 'a whole number')
      return Number(text)
    default:
      return text
  }
}

function typeOf(schema: TSchema, key: string): string | null {
  if (!('properties' in schema) || typeof schema.properties !== 'object' || schema.properties === null) return null
  const property: unknown = Object.entries(schema.properties).find(([name]) => name === key)?.[1]
  return typeof property === 'object' && property !== null && 'type' in property && typeof property.type === 'string'
    ? property.type
    : null
}

function refuse(key: string, seen: string, accepted: string): never {
  throw refusalProblem({ code: 'invalid_request', field: key === '' ? 'query' : `query.${key}`, seen, accepted })
}
