import { Type, type Static, type TSchema } from 'typebox'
import { eitherCasing, type EitherCasing } from '../domain/casing.ts'
import { INT32_MAX, INT53_MAX, PAGE_DEFAULT, PAGE_MAX } from '../domain/requests/request-bounds.ts'

/**
 * Building blocks of the schemas. A schema with a `title` becomes a component with that name in the OpenAPI document.
 * Request schemas refuse unknown fields. Reply schemas allow them, because later versions may add fields.
 */

export const Uuid = Type.String({ format: 'uuid' })
export const DateTime = Type.String({ format: 'date-time' })

/** The schema of a request object. It refuses fields that it does not list. */
export function requestObject<const Properties extends Record<string, TSchema>>(
  properties: Properties,
  options: Documentation = {},
) {
  return Type.Object(properties, { additionalProperties: false, ...options })
}

export type Documentation = { readonly title?: string; readonly description?: string }

/** A schema with a single `type`, made nullable. Its `type` becomes a list, so that an error names both types. */
export function nullable<Schema extends TSchema>(schema: Schema) {
  if (!('type' in schema) || typeof schema.type !== 'string') throw new Error('nullable takes a schema with one type')
  const values = 'enum' in schema && Array.isArray(schema.enum) ? { enum: [...schema.enum, null] } : {}
  return Type.Unsafe<Static<Schema> | null>({ ...schema, type: [schema.type, 'null'], ...values })
}

/** A nullable reference to a component. */
export function nullableComponent<Schema extends TSchema>(schema: Schema) {
  return Type.Unsafe<Static<Schema> | null>({ anyOf: [schema, { type: 'null' }] })
}

/** The schema of a string from a fixed list. */
export function stringEnum<const Value extends string>(values: readonly Value[], options: Documentation = {}) {
  return Type.Unsafe<Value>({ type: 'string', enum: [...values], ...options })
}

/** The schema of a request string from a fixed list, in snake_case or PascalCase. */
export function stringEnumSnakeOrPascal<const Value extends string>(
  values: readonly Value[],
  options: Documentation = {},
) {
  return Type.Unsafe<EitherCasing<Value>>({ type: 'string', enum: eitherCasing(values), ...options })
}

/**
 * The schema of an object that has one of several variants. The string in `tag` selects the variant, so that an error
 * describes only that variant.
 */
export function taggedUnion<const Variants extends readonly TSchema[]>(
  tag: string,
  list: Variants,
  options: Documentation = {},
) {
  return Type.Unsafe<Static<Variants[number]>>({
    type: 'object',
    discriminator: { propertyName: tag },
    oneOf: list,
    ...options,
  })
}

/** The schema of an object with any keys and only strings as values. */
export function stringMap(options: Documentation & { readonly maxProperties?: number } = {}) {
  return Type.Unsafe<Record<string, string>>({ type: 'object', additionalProperties: { type: 'string' }, ...options })
}

/** The schema of a whole number from 0 to 2^31-1, or within narrower bounds. */
export function int32(options: Bounds = {}) {
  return Type.Integer({ format: 'int32', minimum: 0, maximum: INT32_MAX, ...options })
}

/** The schema of a whole number from 0 to 2^53-1, or within narrower bounds. Larger JSON numbers are not exact. */
export function int64(options: Bounds = {}) {
  return Type.Integer({ format: 'int64', minimum: 0, maximum: INT53_MAX, ...options })
}

export type Bounds = Documentation & { readonly minimum?: number; readonly maximum?: number; readonly default?: number }

/** The body of every reply with a status of 400 or above. */
export const ErrorReply = Type.Object(
  {
    error: Type.Object({
      code: Type.String({ description: 'A stable code for programs.' }),
      message: Type.String({ description: 'A sentence for people.' }),
      details: Type.Unsafe<Record<string, unknown> | null>({
        type: ['object', 'null'],
        description:
          'The field or limit, the value that was found, and the accepted values. Null if there is nothing to add.',
      }),
    }),
  },
  { title: 'ErrorReply', description: 'Why a request was not served.' },
)

export const MessageReply = Type.Object(
  { message: Type.String() },
  { title: 'MessageReply', description: 'Confirms that the operation succeeded.' },
)

/** The schema of a page of a list. `next_cursor` is null on the last page. */
export function pageOf<Item extends TSchema>(item: Item, title: string) {
  return Type.Object(
    {
      data: Type.Array(item),
      has_more: Type.Boolean({ description: 'Whether another page follows.' }),
      next_cursor: nullable(Type.String({ description: 'The `cursor` of the next page.' })),
    },
    { title, description: 'A page of a list.' },
  )
}

/** The query parameters of every list operation. */
export const pageQuery = {
  cursor: Type.Optional(Type.String({ description: 'The `next_cursor` of the previous page.' })),
  limit: Type.Optional(
    int64({
      minimum: 1,
      maximum: PAGE_MAX,
      default: PAGE_DEFAULT,
      description: 'The maximum number of items in the page.',
    }),
  ),
}
