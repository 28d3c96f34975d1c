import { BOUNDS } from './openapi-bounds.ts'
import { DESCRIPTIONS } from './openapi-descriptions.ts'
import { EXAMPLES, EXAMPLE_ID, EXAMPLE_INSTANT } from './openapi-examples.ts'
import { isRecord, type Components } from './openapi-schemas.ts'

/** Adds descriptions, bounds and examples to the rendered schemas of the OpenAPI document. */

/** Documents all components and their properties. */
export function documentComponents(components: Components): object {
  const names = [...components.keys()].toSorted()
  return Object.fromEntries(names.map((name) => [name, documentObject(components, name, components.get(name) ?? {})]))
}

function documentObject(components: Components, owner: string, schema: Record<string, unknown>): object {
  return { ...documentProperties(components, owner, schema), examples: [exampleOf(components, schema, owner)] }
}

function documentProperties(components: Components, owner: string, schema: Record<string, unknown>): object {
  const { properties } = schema
  if (!isRecord(properties)) return schema
  const documented = Object.entries(properties).map(([name, property]) => {
    return [name, documentProperty(components, `${owner}.${name}`, Object(property))]
  })
  return { ...schema, properties: Object.fromEntries(documented) }
}

/** Documents a property, or a parameter such as `query.limit`. The component of a reference is documented itself. */
export function documentProperty(components: Components, key: string, property: Record<string, unknown>): object {
  if ('$ref' in property) return property
  const description = property['description'] ?? rowOf(DESCRIPTIONS, key)
  return {
    ...documentProperties(components, key, property),
    ...(description === undefined ? {} : { description }),
    ...Object(BOUNDS[key]),
    examples: [exampleOf(components, property, key)],
  }
}

/** The row of a table for a field: by its component and name, or else by its name alone. */
function rowOf<Row>(rows: Readonly<Record<string, Row>>, key: string): Row | undefined {
  return rows[key] ?? rows[key.slice(key.lastIndexOf('.') + 1)]
}

/** The example of a schema, or `undefined` for a text that has none in the table, which a test reports. */
export function exampleOf(components: Components, schema: unknown, key: string): unknown {
  if (!isRecord(schema)) return undefined
  const { $ref, type, enum: values, format, oneOf, anyOf, items, properties, minimum } = schema
  if (key in EXAMPLES) return EXAMPLES[key]
  if (typeof $ref === 'string') {
    const name = $ref.slice($ref.lastIndexOf('/') + 1)
    return exampleOf(components, components.get(name), name)
  }
  if (Array.isArray(values)) return values[0]
  if (format === 'uuid') return EXAMPLE_ID
  if (format === 'date-time') return EXAMPLE_INSTANT
  const variants = [oneOf, anyOf].find((list) => Array.isArray(list))
  if (variants !== undefined) return exampleOf(components, variants[0], key)
  if (isRecord(properties)) {
    const fields = Object.entries(properties)
    return Object.fromEntries(fields.map(([name, value]) => [name, exampleOf(components, value, `${key}.${name}`)]))
  }
  const row = rowOf(EXAMPLES, key)
  if (row !== undefined) return row
  const types = Array.isArray(type) ? type : [type]
  if (types.includes('array')) return [exampleOf(components, items, `${key}.item`)]
  if (types.includes('boolean')) return false
  if (types.includes('integer')) return typeof minimum === 'number' ? minimum : 1
  if (types.includes('number')) return 1.5
  return types.includes('null') ? null : types.includes('object') ? {} : undefined
}
