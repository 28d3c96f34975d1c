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

/** A create body as the public client sent it. */
export type CapturedBody = { readonly name: string; readonly body: object }

/** Every recorded create body. `setup/contract-fixtures.mjs` wrote them. */
export function capturedBodies(): readonly CapturedBody[] {
  const bodies: Readonly<Record<string, object>> = readFixture('create-bodies.json')
  return Object.entries(bodies).map(([name, body]) => ({ name, body }))
}

/** The shapes of the published document: `setup/contract-fixtures.mjs` took its prose out. */
export function publishedShapes(): { readonly paths: Readonly<Record<string, Readonly<Record<string, unknown>>>> } {
  return readFixture('published-shapes.json')
}

/** A validator of one schema of the published document, such as `/components/schemas/ErrorResponse`. */
export function publishedSchema(pointer: string): ValidateFunction {
  const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: false })
  ajv.addSchema(publishedShapes(), 'published')
  const validate = ajv.getSchema(`published#${pointer}`)
  assert.ok(validate !== undefined, `the published document has no ${pointer}`)
  return validate
}

function readFixture(name: string): ReturnType<typeof JSON.parse> {
  return JSON.parse(readFileSync(join(fixtures, name), 'utf8'))
}

/**
 * Asserts that a reply is one that its operation allows: the operation lists its status and code, its body fits our schema without
 * any other field, and it fits the published document if that has the operation.
 */
export function assertReplyMatchesContract(id: OperationId, status: number, body: unknown): void {
  const operation: Operation = OPERATIONS[id]
  const isRefusal = status >= 400
  if (isRefusal) assertCode(operation, status, body)
  else assert.equal(status, operation.reply.status, `${id} answered ${String(status)}`)
  const schema = isRefusal ? ErrorReply : operation.reply.kind === 'json' ? operation.reply.schema : null
  if (schema !== null) assertFits(ownValidator(schema), body, `${id} ${String(status)} against our own schema`)
  const published = publishedReply(operation, status)
  if (published !== null) assertFits(published, body, `${id} ${String(status)} against the published document`)
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

/** The schema with every object closed, so that a field outside the schema is found. */
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

/** The published document lists few of the refusals of each operation; all have one shape. Null for what it does not have. */
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
