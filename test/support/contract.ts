import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import type { TSchema } from 'typebox'
import { ErrorReply } from '../../src/contract/common.ts'
import { problemsOf, type Operation } from '../../src/contract/operation.ts'
import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import { publicCode, PROBLEMS } from '../../src/domain/problem.ts'

/** The identifiers of all operations. */
export const operationIds: readonly OperationId[] = Object.keys(OPERATIONS).filter(
  (id): id is OperationId => id in OPERATIONS,
)

const fixtures = join(import.meta.dirname, '../fixtures')

/** A create body that the public client sent, under the name that `setup/contract-fixtures.mjs` gave it. */
export type CapturedBody = { readonly name: string; readonly body: object }

/** Every create body in `test/fixtures/create-bodies.json`. `setup/contract-fixtures.mjs` wrote that file. */
export function capturedBodies(): readonly CapturedBody[] {
  const bodies: Readonly<Record<string, object>> = readFixture('create-bodies.json')
  return Object.entries(bodies).map(([name, body]) => ({ name, body }))
}

/** A request other than a create that the public client sent with a body. Its URL contains `{id}` or `{name}`. */
export type CapturedRequest = {
  readonly name: string
  readonly method: string
  readonly url: string
  readonly body: object
}

/** Every request in `test/fixtures/client-requests.json`, which `setup/contract-fixtures.mjs` wrote. */
export function capturedRequests(): readonly CapturedRequest[] {
  return readFixture('client-requests.json')
}

/**
 * The published API document: the OpenAPI document of the service for which the public clients were written. Our own is
 * openapi.json. `setup/contract-fixtures.mjs` left only paths, parameters, types and statuses in
 * `published-shapes.json`.
 */
export function publishedShapes(): { readonly paths: Readonly<Record<string, Readonly<Record<string, unknown>>>> } {
  return readFixture('published-shapes.json')
}

/** A validator of one schema of the published API document, such as `/components/schemas/ErrorResponse`. */
export function publishedSchema(pointer: string): ValidateFunction {
  const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: false })
  ajv.addSchema(publishedShapes(), 'published')
  const validate = ajv.getSchema(`published#${pointer}`)
  assert.ok(validate !== undefined, `the published API document has no ${pointer}`)
  return validate
}

function readFixture(name: string): ReturnType<typeof JSON.parse> {
  return JSON.parse(readFileSync(join(fixtures, name), 'utf8'))
}

/**
 * Asserts that a reply fits two documents. By our own table (`src/contract/operations.ts`), the operation allows the
 * status and the error code, and the body fits its schema and has no other field. By the published API document
 * (`publishedShapes`), the body fits too, if that document describes the operation.
 */
export function assertReplyMatchesContract(id: OperationId, status: number, body: unknown): void {
  const operation: Operation = OPERATIONS[id]
  const isRefusal = status >= 400
  if (isRefusal) assertCode(operation, status, body)
  else assert.equal(status, operation.reply.status, `${id} answered ${String(status)}`)
  const schema = isRefusal ? ErrorReply : operation.reply.kind === 'json' ? operation.reply.schema : null
  if (schema !== null) assertFits(ownValidator(schema), body, `${id} ${String(status)} against our schema`)
  const published = publishedReply(operation, status)
  if (published !== null) assertFits(published, body, `${id} ${String(status)} against the published API document`)
}

function assertCode(operation: Operation, status: number, body: unknown): void {
  const allowed = problemsOf(operation).filter((code) => PROBLEMS[code].status === status)
  const code = codeOf(body)
  assert.ok(
    allowed.some((one) => publicCode(one) === code),
    `${operation.id} answered ${String(status)} ${String(code)}; its row allows ${allowed.join(', ') || 'no such status'}`,
  )
}

function codeOf(body: unknown): unknown {
  if (typeof body !== 'object' || body === null || !('error' in body)) return undefined
  const { error } = body
  return typeof error === 'object' && error !== null && 'code' in error ? error.code : undefined
}

function assertFits(validate: ValidateFunction, body: unknown, what: string): void {
  const fits = validate(body)
  assert.ok(fits, `${what}: ${JSON.stringify(validate.errors?.slice(0, 3))} in ${JSON.stringify(body)?.slice(0, 2000)}`)
}

const own = new Map<TSchema, ValidateFunction>()

function ownValidator(schema: TSchema): ValidateFunction {
  const known = own.get(schema)
  if (known !== undefined) return known
  const ajv = new Ajv2020({ discriminator: true, allowUnionTypes: true, validateFormats: false })
  const made = ajv.compile(closed(schema))
  own.set(schema, made)
  return made
}

/** A copy of a schema in which `additionalProperties` is false, so that a reply with an undocumented field fails. */
function closed(schema: unknown): object {
  const result = walk(schema)
  assert.ok(typeof result === 'object' && result !== null)
  return result
}

function walk(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(walk)
  if (typeof schema !== 'object' || schema === null) return schema
  const entries = Object.entries(schema).map(([key, value]) => [key, walk(value)])
  const isClosable =
    'properties' in schema && !('additionalProperties' in schema) && Object.keys(Object(schema.properties)).length > 0
  return { ...Object.fromEntries(entries), ...(isClosable ? { additionalProperties: false } : {}) }
}

const published = new Map<string, ValidateFunction | null>()

/**
 * The validator for a reply's body by the published API document, or null if that does not describe the operation.
 * Every refusal is checked against `ErrorResponse`, because the document lists only a few refusals of each operation.
 */
function publishedReply({ path, method }: Operation, status: number): ValidateFunction | null {
  const isRefusal = status >= 400
  const route = path.replaceAll('~', '~0').replaceAll('/', '~1')
  const pointer = isRefusal
    ? '/components/schemas/ErrorResponse'
    : `/paths/${route}/${method.toLowerCase()}/responses/${String(status)}/content/application~1json/schema`
  const known = published.get(pointer)
  if (known !== undefined) return known
  const isPublished = isRefusal || publishedShapes().paths[path]?.[method.toLowerCase()] !== undefined
  const validate = isPublished ? publishedSchema(encodeURI(pointer)) : null
  published.set(pointer, validate)
  return validate
}
