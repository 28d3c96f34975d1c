import type { ErrorObject } from 'ajv/dist/2020.js'
import { describeSeen, type Refusal } from '../../../domain/refusal.ts'
import { joinField } from '../../../domain/json/json-values.ts'

/**
 * The part of a request that contains a value. The field path in an error starts with this part, except for the body.
 */
export type RequestPart = 'path' | 'query' | 'body'

/**
 * Describes a validator's errors as one refusal: the path of the field, the value that was seen, and the values that
 * would be accepted.
 */
export function describeSchemaErrors(errors: readonly ErrorObject[], part: RequestPart): Refusal {
  const [first] = errors
  if (first === undefined) throw new Error('a validator refused without an error')
  const key = extraKey(first)
  const field = fieldPath(part, key === null ? first.instancePath : `${first.instancePath}/${escapePointer(key)}`)
  return { code: 'invalid_request', field, seen: describeValue(first, field), accepted: describeAccepted(errors) }
}

/** Formats a JSON pointer as a readable path, such as `mounts[0].guest`. */
function fieldPath(part: RequestPart, pointer: string): string {
  const steps = pointer
    .split('/')
    .slice(1)
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
  const prefix = part === 'body' ? '' : part
  const path = steps.reduce((before, step) => joinField(before, step, /^\d+$/.test(step)), prefix)
  return path === '' ? 'body' : path
}

function escapePointer(key: string): string {
  return key.replaceAll('~', '~0').replaceAll('/', '~1')
}

/** The key that an error is about, if the error's own path does not contain the key. */
function extraKey({ keyword, params }: ErrorObject): string | null {
  if (keyword === 'additionalProperties') return stringAt(params, 'additionalProperty')
  if (keyword === 'required') return stringAt(params, 'missingProperty')
  if (keyword === 'discriminator') return stringAt(params, 'tag')
  return null
}

/** Fields that may contain a secret. For them, an error contains the type of the value, never the value. */
const SECRET_FIELD = /^(?:registry|network\.secrets|secrets)\b|(?:^|\.)(?:value|password|content)$|^runtime\.scripts\./

function describeValue({ keyword, params, data }: ErrorObject, field: string): string {
  if (keyword === 'additionalProperties') return 'an unknown field'
  if (keyword === 'required') return 'nothing'
  const value: unknown = keyword === 'discriminator' ? params.tagValue : data
  if (value === undefined || typeof value === 'object' || !SECRET_FIELD.test(field)) return describeSeen(value)
  return `a ${typeof value}`
}

/**
 * Describes the values that the schema would accept. If none of several alternatives matched, each has an error with
 * the same path, and all are named. Otherwise the first error belongs to the variant that the client meant.
 */
function describeAccepted(errors: readonly ErrorObject[]): string {
  const [first] = errors
  if (first === undefined) return ''
  const isThere = ({ instancePath }: ErrorObject): boolean => instancePath === first.instancePath
  const choice = errors.findIndex((error) => error.keyword === 'anyOf' && isThere(error))
  const choices = choice === -1 || extraKey(first) !== null ? [first] : errors.slice(0, choice).filter(isThere)
  return [...new Set(choices.map(describeAcceptedByOne))].join(' or ')
}

function describeAcceptedByOne({ keyword, params, schema, parentSchema }: ErrorObject): string {
  switch (keyword) {
    case 'additionalProperties':
      return formatList(Object.keys(recordAt(parentSchema, 'properties')), 'no fields', 'only')
    case 'required':
      return describeSchema(recordAt(parentSchema, 'properties')[stringAt(params, 'missingProperty') ?? ''])
    case 'discriminator':
      return formatList(tagsOf(parentSchema, stringAt(params, 'tag') ?? ''), 'nothing', 'one of')
    case 'type':
      return describeType(schema)
    case 'enum':
      return formatList(Array.isArray(schema) ? schema.map((value) => String(value)) : [], 'nothing', 'one of')
    case 'format':
      return FORMAT_RULES[String(schema)] ?? String(schema)
    case 'minimum':
    case 'minItems':
    case 'minLength':
    case 'minProperties':
      return `at least ${String(schema)}${unitOf(keyword)}`
    case 'maximum':
    case 'maxItems':
    case 'maxLength':
    case 'maxProperties':
      return `at most ${String(schema)}${unitOf(keyword)}`
    case 'pattern':
      return `text that matches ${String(schema)}`
    case 'uniqueItems':
      return 'no item twice'
    default:
      return `a value that meets ${keyword}`
  }
}

const FORMAT_RULES: Readonly<Record<string, string>> = {
  uuid: 'a UUID',
  'date-time': 'a date and time with offset (RFC 3339), such as 2026-01-31T12:00:00Z',
}

function unitOf(keyword: string): string {
  if (keyword.endsWith('Items')) return ' items'
  if (keyword.endsWith('Length')) return ' characters'
  return keyword.endsWith('Properties') ? ' fields' : ''
}

function describeSchema(schema: unknown): string {
  if (!isRecord(schema)) return 'a value'
  if (Array.isArray(schema.enum)) return formatList(schema.enum.map(String), 'nothing', 'one of')
  return 'type' in schema ? describeType(schema.type) : 'a value'
}

function describeType(type: unknown): string {
  return Array.isArray(type) ? type.map(describeType).join(' or ') : (TYPE_NAMES[String(type)] ?? String(type))
}

const TYPE_NAMES: Readonly<Record<string, string>> = {
  array: 'a list',
  boolean: 'a boolean',
  integer: 'a whole number',
  null: 'null',
  object: 'an object',
  string: 'a string',
}

function tagsOf(schema: unknown, tag: string): readonly string[] {
  const variants = isRecord(schema) && Array.isArray(schema.oneOf) ? schema.oneOf : []
  return variants.flatMap((variant) => {
    const values = recordAt(recordAt(variant, 'properties'), tag).enum
    return Array.isArray(values) ? values.map(String) : []
  })
}

function formatList(words: readonly string[], none: string, opening: string): string {
  return words.length === 0 ? none : `${opening} ${words.join(', ')}`
}

function recordAt(value: unknown, key: string): Record<string, unknown> {
  const held = isRecord(value) ? value[key] : undefined
  return isRecord(held) ? held : {}
}

function stringAt(value: unknown, key: string): string | null {
  const held = isRecord(value) ? value[key] : undefined
  return typeof held === 'string' ? held : null
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
