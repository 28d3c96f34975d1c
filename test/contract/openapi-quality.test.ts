import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { renderDocument } from '../../src/contract/openapi.ts'

// What client generators and readers need of openapi.json. `npm run check` lints it too.

type Schema = { readonly [key: string]: unknown }

const document = Object(renderDocument())
const components: Readonly<Record<string, Schema>> = document.components.schemas

/** The schemas of all components and, recursively, of their properties, by their path. */
const schemas = Object.entries(components).flatMap(([name, schema]) => withProperties(name, schema))

function withProperties(path: string, schema: Schema): [string, Schema][] {
  const properties: [string, Schema][] = Object.entries(Object(schema['properties']))
  return [[path, schema], ...properties.flatMap(([name, one]) => withProperties(`${path}.${name}`, one))]
}

const isReference = (schema: Schema): boolean => '$ref' in schema

test('every schema and property of openapi.json has a description and an example', () => {
  const undocumented = schemas.filter(([, schema]) => {
    const { description, examples } = schema
    return !isReference(schema) && !(typeof description === 'string' && Array.isArray(examples) && examples.length > 0)
  })
  assert.deepEqual(
    undocumented.map(([path]) => path),
    [],
    'describe them in the schema or in openapi-descriptions.ts; add an example to openapi-examples.ts',
  )
})

test('every operation and parameter of openapi.json has a description and an example', () => {
  for (const [path, methods] of Object.entries<Schema>(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const { description, parameters, requestBody, responses } = Object(operation)
      assert.ok(description, `${method} ${path}`)
      for (const one of parameters) {
        assert.ok(one.description, `${method} ${path}: ${one.in}.${one.name} has no description`)
        assert.notEqual(one.example, undefined, `${method} ${path}: ${one.in}.${one.name} has no example`)
      }
      const contents = [requestBody, ...Object.values(responses)].flatMap((one) =>
        Object.values(Object(one).content ?? {}),
      )
      for (const content of contents) assert.ok('example' in Object(content) || 'examples' in Object(content), path)
    }
  }
})

test('every example of openapi.json fits its schema', () => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false })
  ajv.addSchema(document, 'document')
  const failures = Object.keys(components).flatMap((name) => {
    const validate = ajv.getSchema(`document#/components/schemas/${name}`)
    const fits = validate?.(Object(components[name]).examples[0])
    return fits === true ? [] : [`${name}: ${JSON.stringify(validate?.errors)}`]
  })
  assert.deepEqual(failures, [])
  for (const [path, schema] of schemas.filter(([, one]) => !isReference(one) && 'examples' in one)) {
    const own = { ...schema, $id: undefined }
    const text = JSON.stringify(own).replaceAll('"#/components', '"document#/components')
    for (const example of Object(schema)['examples'])
      assert.ok(ajv.validate(JSON.parse(text), example), `${path}: ${JSON.stringify(example)} ${ajv.errorsText()}`)
  }
})

test('no schema of openapi.json has a default, because generators make a field with a default required', () => {
  assert.doesNotMatch(JSON.stringify(document), /"default":/)
})

test('openapi.json lists only one spelling of each value of an enum', () => {
  for (const [, values] of JSON.stringify(document).matchAll(/"enum":(\[[^\]]*\])/g)) {
    const spelt = JSON.parse(values ?? '').map((value: unknown) => String(value).replaceAll('_', '').toLowerCase())
    assert.equal(new Set(spelt).size, spelt.length, values)
  }
})

test('each variant of a union of objects is a component, and its tag is an enum with a name', () => {
  const unions = Object.entries(components).filter(([, schema]) => 'oneOf' in schema || 'anyOf' in schema)
  assert.ok(unions.length > 8)
  for (const [name, union] of unions) {
    const variants: Schema[] = Object(union)['oneOf'] ?? Object(union)['anyOf']
    for (const variant of variants) assert.ok(isReference(variant) || 'type' in variant, name)
    assert.ok(!variants.some(({ properties }) => properties !== undefined), `${name} has a variant without a name`)
    if (!('discriminator' in union)) continue
    const { propertyName, mapping } = Object(union)['discriminator']
    assert.deepEqual(
      Object.values(mapping),
      variants.map(({ $ref }) => $ref),
      name,
    )
    for (const [value, $ref] of Object.entries<string>(mapping)) {
      const tag = Object(components[nameOf($ref)])['properties'][propertyName]
      assert.deepEqual(Object(components[nameOf(tag.$ref)])['enum'], [value], name)
    }
  }
})

function nameOf(reference: string): string {
  return reference.slice(reference.lastIndexOf('/') + 1)
}
