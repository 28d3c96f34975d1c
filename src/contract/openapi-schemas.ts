import { pascalCase } from '../domain/casing.ts'

/** Renders the schemas of the contract for the OpenAPI document, which generators of clients read. */

/** The schemas of the document that have a name. */
export type Components = Map<string, Record<string, unknown>>

/**
 * Renders a schema: one with a title becomes a component and a reference to it. The document differs from what the
 * server validates in three ways. It lists only the snake_case spelling of a request's enums. A default is a sentence of
 * the description, because generators make a field with a default required. Every variant of a tagged union is a
 * component, and so is its tag, because generators name types after components.
 */
export function renderSchema(schema: unknown, components: Components): unknown {
  if (Array.isArray(schema)) return schema.map((item) => renderSchema(item, components))
  if (!isRecord(schema)) return schema
  const { title, ...untitled } = schema
  if (typeof title !== 'string') return renderKeywords(schema, components)
  const rendered = renderKeywords(
    isRecord(schema['discriminator']) ? nameVariants(untitled, title) : untitled,
    components,
  )
  const known = components.get(title)
  if (known !== undefined && JSON.stringify(known) !== JSON.stringify(rendered))
    throw new Error(`two schemas have the title ${title}`)
  components.set(title, rendered)
  return { $ref: reference(title) }
}

function renderKeywords(schema: Record<string, unknown>, components: Components): Record<string, unknown> {
  const { default: fallback, description, ...others } = schema
  const described = [description, fallback === undefined ? null : `Default: \`${JSON.stringify(fallback)}\`.`]
  const text = described.filter((one) => typeof one === 'string').join(' ')
  const rendered = Object.entries(others).map(([key, value]) => {
    if (key === 'enum' && Array.isArray(value)) return [key, documentedSpellings(value)]
    if (key === 'discriminator') return [key, value]
    if (key === 'properties' && isRecord(value)) {
      const properties = Object.entries(value).map(([name, property]) => [name, renderSchema(property, components)])
      return [key, Object.fromEntries(properties)]
    }
    return [key, renderSchema(value, components)]
  })
  return { ...Object.fromEntries(rendered), ...(text === '' ? {} : { description: text }) }
}

/** The values of an enum without the PascalCase spelling of another value, which requests may use too. */
function documentedSpellings(values: readonly unknown[]): readonly unknown[] {
  const isSecond = (value: unknown): boolean =>
    values.some((other) => typeof other === 'string' && other !== value && pascalCase(other) === value)
  return values.filter((value) => !isSecond(value))
}

/**
 * Names the variants of a tagged union and the enums of their tags: `Mount` has the variant `MountBind` with the tag
 * `MountBindType`.
 */
function nameVariants(union: Record<string, unknown>, title: string): Record<string, unknown> {
  const tag = String(Object(union['discriminator']).propertyName)
  const variants = (Array.isArray(union['oneOf']) ? union['oneOf'] : []).map((variant: unknown) => {
    const { properties, description } = Object(variant)
    const value = String(properties[tag].enum[0])
    const name = `${title}${pascalCase(value)}`
    const named = { ...properties[tag], title: `${name}${pascalCase(tag)}`, description: `The tag of ${name}.` }
    return {
      value,
      name,
      schema: {
        ...Object(variant),
        title: name,
        description: description ?? `The variant of ${title} whose \`${tag}\` is \`${value}\`.`,
        properties: { ...properties, [tag]: named },
      },
    }
  })
  const mapping = Object.fromEntries(variants.map(({ value, name }) => [value, reference(name)]))
  return { ...union, discriminator: { propertyName: tag, mapping }, oneOf: variants.map(({ schema }) => schema) }
}

function reference(title: string): string {
  return `#/components/schemas/${title}`
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
