import { isMisspelt } from '../../../domain/edit-distance.ts'
import type { AnySchemaObject, ErrorObject, FuncKeywordDefinition } from 'ajv/dist/2020.js'

/**
 * Requests of clients that are newer than this server. Such a client may send a member that the server doesn't know, at
 * its default. A member that asks for nothing (null, false, an empty text, list or object) is therefore accepted and
 * ignored. An unknown member with another value is refused by name, and so is one whose name looks like a misspelling:
 * an ignored `enabeld: false` would leave on what the client switches off.
 */

const KEYWORD = 'acceptsEmptyMembers'

/** A copy of a schema whose objects accept unknown members that ask for nothing. */
export function acceptEmptyMembers(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(acceptEmptyMembers)
  if (typeof schema !== 'object' || schema === null) return schema
  const { additionalProperties, ...others } = Object.fromEntries(
    Object.entries(schema).map(([key, value]) => [key, acceptEmptyMembers(value)]),
  )
  if (additionalProperties === undefined) return others
  // A limit on the number of members means that one member selects the variant. A second one stays ambiguous.
  const isClosed = additionalProperties === false && !('maxProperties' in others)
  return isClosed ? { ...others, [KEYWORD]: true } : { ...others, additionalProperties }
}

const refuseUnknown: Validate = (_accepts, members, parentSchema) => {
  const properties: object = Object(parentSchema?.['properties'])
  const all = Object.keys(members).filter((key) => !Object.hasOwn(properties, key))
  if (all.length === 0) return true
  const known = Object.keys(properties)
  const refuses = (key: string): boolean =>
    asksForSomething(members[key]) || known.some((name) => isMisspelt(key, name))
  const unknown = all[UNKNOWN_MAX] ?? all.find(refuses)
  if (unknown === undefined) return true
  const params = { additionalProperty: unknown }
  refuseUnknown.errors = [{ keyword: 'additionalProperties', params, ...(parentSchema && { parentSchema }) }]
  return false
}

type Validate = {
  (accepts: true, members: Readonly<Record<string, unknown>>, parentSchema?: AnySchemaObject): boolean
  errors?: Partial<ErrorObject>[]
}

/** Whether a value asks for anything. */
export function asksForSomething(value: unknown): boolean {
  if (Array.isArray(value)) return value.length > 0
  if (typeof value === 'object' && value !== null) return Object.keys(value).length > 0
  return value !== null && value !== false && value !== ''
}

/** How many unknown members an object may have. Comparing their names takes time, which an attacker must not multiply. */
const UNKNOWN_MAX = 16

/** The keyword in copies of `acceptEmptyMembers`. Its errors are those of `additionalProperties`. */
export const EMPTY_MEMBERS_KEYWORD: FuncKeywordDefinition = {
  keyword: KEYWORD,
  type: 'object',
  schemaType: 'boolean',
  before: 'additionalProperties',
  errors: 'full',
  validate: refuseUnknown,
}
