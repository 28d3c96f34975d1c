import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { renderDocument, renderDocumentText } from '../../src/contract/openapi.ts'
import { OPERATIONS } from '../../src/contract/operations.ts'
import { publishedShapes } from '../support/contract.ts'

const golden = join(import.meta.dirname, '../../openapi.json')

test('openapi.json in the repository is the document that the table of operations renders', () => {
  const isEqual = readFileSync(golden, 'utf8') === renderDocumentText()
  assert.ok(isEqual, 'they differ; write it anew with `sandyard openapi > openapi.json` and read the difference')
})

test('every $ref in openapi.json names a component, and some $ref names each component', () => {
  const text = renderDocumentText()
  const referred = new Set([...text.matchAll(/"#\/components\/schemas\/([^"]+)"/g)].map(([, name]) => name ?? ''))
  const { components } = Object(renderDocument())
  assert.deepEqual([...referred].toSorted(), Object.keys(components.schemas).toSorted())
})

test('every schema of openapi.json, including the schemas that it refers to, is valid JSON Schema', () => {
  const ajv = new Ajv2020({ strict: true, strictRequired: false, allowUnionTypes: true, validateFormats: false })
  ajv.addVocabulary(['openapi', 'info', 'servers', 'security', 'tags', 'paths', 'components', 'discriminator'])
  ajv.addSchema(renderDocument(), 'document')
  for (const name of Object.keys(Object(renderDocument()).components.schemas)) {
    assert.equal(typeof ajv.getSchema(`document#/components/schemas/${name}`), 'function', name)
  }
})

test('the key of every row of the table is its operation id, and no two rows share a route', () => {
  const rows = Object.entries(OPERATIONS)
  for (const [key, { id }] of rows) assert.equal(id, key)
  assert.equal(new Set(rows.map(([, { method, path }]) => `${method} ${path}`)).size, rows.length)
})

test('openapi.json has every sandbox, event, organization and member route of the published API document, with the same parameters', () => {
  const ours = Object(renderDocument()).paths
  for (const [path, methods] of Object.entries(publishedShapes().paths)) {
    if (!/^\/v1\/(?:sandboxes|events|me\/|members)/.test(path)) continue
    for (const [method, operation] of Object.entries(methods))
      assert.deepEqual(namesOf(Object(ours[path])[method]), namesOf(operation), `${method} ${path}`)
  }
})

/** Optional headers and filters of our own, which the published API document does not have. */
const OURS: ReadonlySet<string> = new Set([
  'header Idempotency-Key',
  'header If-Match',
  'header If-None-Match',
  'query actor',
  'query category',
  'query on_timeout',
  'query sandbox_id',
])

function namesOf(operation: unknown): string[] {
  const list: { in: string; name: string }[] = Object(operation).parameters ?? []
  return list.map((parameter) => `${parameter.in} ${parameter.name}`).filter((one) => !OURS.has(one)).toSorted() // prettier-ignore
}
