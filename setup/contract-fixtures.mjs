// Writes the parts of the published contract that the tests need to test/fixtures. With these files the tests run in
// any clone.
//
// node setup/contract-fixtures.mjs OPENAPI_JSON BODIES_FOLDER...
//
// - published-shapes.json: OPENAPI_JSON without its prose. Paths, parameters, types and statuses remain.
//
// - create-bodies.json: the bodies of create requests that the public client sent, one from each file of the
// BODIES_FOLDERs. The keys are the file names. For all folders but the first, the folder's name precedes the file name.
// The registry of each image is replaced.
//
// - client-requests.json: every other request with a body, from the folders that have an INDEX.json.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'

const fixtures = join(import.meta.dirname, '../test/fixtures')

/** The schema keywords to keep. Prose (descriptions, titles, examples) and defaults are left out. */
const SCHEMA_KEYWORDS = new Set([
  '$ref', 'additionalProperties', 'allOf', 'anyOf', 'const', 'enum', 'format', 'items', 'maxItems', 'maximum', 'minItems',
  'minimum', 'oneOf', 'pattern', 'propertyNames', 'required', 'type',
]) // prettier-ignore

function main([documentPath, ...folders]) {
  if (documentPath === undefined || folders.length === 0) {
    process.stderr.write('usage: node setup/contract-fixtures.mjs OPENAPI_JSON BODIES_FOLDER...\n')
    process.exitCode = 2
    return
  }
  mkdirSync(fixtures, { recursive: true })
  write('published-shapes.json', shapesOf(readJson(documentPath)), 3)
  write('create-bodies.json', Object.fromEntries(folders.flatMap((folder, index) => bodiesIn(folder, index > 0))), 2)
  write('client-requests.json', folders.flatMap(otherRequestsIn), 2)
}

function shapesOf({ openapi, paths, components }) {
  const operations = mapValues(paths, (methods) => mapValues(methods, operationShape))
  return { openapi, paths: operations, components: { schemas: mapValues(components.schemas, schemaShape) } }
}

function operationShape({ operationId, parameters = [], requestBody, responses }) {
  return {
    operationId,
    parameters: parameters.map(({ name, in: location, required, schema }) => ({
      name,
      in: location,
      required,
      schema: schemaShape(schema),
    })),
    ...(requestBody === undefined ? {} : { requestBody: contentShape(requestBody) }),
    responses: mapValues(responses, contentShape),
  }
}

function contentShape({ required, content = {} }) {
  const shapes = mapValues(content, ({ schema }) => ({ schema: schemaShape(schema) }))
  return { ...(required === undefined ? {} : { required }), content: shapes }
}

/** Reduces a schema to its keywords. Below `properties` every key is a name and is kept. */
function schemaShape(schema) {
  if (Array.isArray(schema)) return schema.map(schemaShape)
  if (typeof schema !== 'object' || schema === null) return schema
  const kept = Object.entries(schema).filter(([key]) => SCHEMA_KEYWORDS.has(key))
  const properties = schema.properties === undefined ? {} : { properties: mapValues(schema.properties, schemaShape) }
  return { ...Object.fromEntries(kept.map(([key, value]) => [key, schemaShape(value)])), ...properties }
}

function bodiesIn(folder, isNamed) {
  const files = readdirSync(folder).filter((file) => file.endsWith('.json'))
  return files.toSorted().flatMap((file) => {
    const body = readJson(join(folder, file))
    if (body.image === undefined && body.source === undefined) return []
    const name = basename(file, '.json')
    return [[isNamed ? `${basename(folder)}/${name}` : name, replaceRegistry(body)]]
  })
}

/** The requests of a folder's INDEX.json that create no sandbox. */
function otherRequestsIn(folder) {
  const index = join(folder, 'INDEX.json')
  const { files = [] } = existsSync(index) ? readJson(index) : {}
  const isOther = ({ url, reply }) => reply !== true && url !== undefined && !/^\/v1\/sandboxes(?:\?|$)/.test(url)
  return files.filter(isOther).map(({ file, method, url }) => {
    return { name: `${basename(folder)}/${basename(file, '.json')}`, method, url, body: readJson(join(folder, file)) }
  })
}

function replaceRegistry(body) {
  const hideHost = (reference) => reference.replace(/^[^/]+\.[^/]+\//, 'registry.example/')
  if (body.source === 'disk_snapshot') return body
  if (body.reference !== undefined) return { ...body, reference: hideHost(body.reference) }
  return { ...body, image: { ...body.image, reference: hideHost(body.image.reference) } }
}

function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]))
}

function readJson(path) {
  return JSON.parse(readFileSync(path, 'utf8'))
}

/**
 * Writes `depth` levels on separate lines and everything deeper on one line. A change then affects only a few lines.
 */
function write(name, value, depth) {
  const deeper = new RegExp(`\\n {${String(depth + 1)},}|\\n {${String(depth)}}(?=[}\\]])`, 'g')
  const text = JSON.stringify(value, null, 1).replaceAll(deeper, '')
  writeFileSync(join(fixtures, name), `${text}\n`)
}

main(process.argv.slice(2))
