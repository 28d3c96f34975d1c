import assert from 'node:assert/strict'
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import type { TSchema } from 'typebox'
import { ErrorReply } from '../../src/contract/common.ts'
import { problemsOf, type Operation } from '../../src/contract/operation.ts'
import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'
import { publicCode, PROBLEMS } from '../../src/domain/problem.ts'

/** Where the contract of the hosted service lies: published description, recorded traffic. */
export const CONTRACT_DIR =
  process.env['SANDYARD_CONTRACT_DIR'] ?? join(import.meta.dirname, '../../../shared/contract')

/** Why tests against the published contract can't run, or false when they can. For `{ skip }`. */
export const contractIsMissing: string | false = existsSync(join(CONTRACT_DIR, 'openapi.json'))
  ? false
  : `no contract at ${CONTRACT_DIR}; set SANDYARD_CONTRACT_DIR`

/** The identifiers of all operations. */
export const operationIds: readonly OperationId[] = Object.keys(OPERATIONS).filter(
  (id): id is OperationId => id in OPERATIONS,
)

/** A create body as the public client sent it. */
export type CapturedBody = { readonly file: string; readonly body: unknown }

/** Every recorded create body, in the order of their file names. */
export function capturedBodies(): readonly CapturedBody[] {
  const root = join(CONTRACT_DIR, 'captured')
  const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter(
    (file) => file.endsWith('.json') && file !== 'INDEX.json',
  )
  return files
    .toSorted()
    .filter((file) => statSync(join(root, file)).isFile())
    .map((file) => ({ file, body: JSON.parse(readFileSync(join(root, file), 'utf8')) }))
}

/** The published document as a validator of replies; null when it is not there. */
export function publishedSchema(pointer: string): ValidateFunction | null {
  if (contractIsMissing !== false) return null
  const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: false })
  ajv.addSchema(readPublished(), 'published')
  return ajv.getSchema(`published#${pointer}`) ?? null
}

/**
 * Asserts that a reply is one that the contract allows for an operation: its status and code are of the operation's, its
 * body fits our own schema without a field beside it, and fits the published document where that has the operation.
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

/** The schema with every object closed, so that a field which the contract lacks is found. */
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

function publishedReply({ path, method }: Operation, status: number): ValidateFunction | null {
  const route = path.replaceAll('~', '~0').replaceAll('/', '~1')
  // The published document lists few of the refusals of each operation; all have one shape.
  const pointer =
    status >= 400
      ? '/components/schemas/ErrorResponse'
      : `/paths/${route}/${method.toLowerCase()}/responses/${String(status)}/content/application~1json/schema`
  const known = published.get(pointer)
  if (known !== undefined) return known
  const hasOperation = contractIsMissing === false && isListed(path, method)
  const made =
    hasOperation || (status >= 400 && contractIsMissing === false) ? publishedSchema(encodeURI(pointer)) : null
  published.set(pointer, made)
  return made
}

function isListed(path: string, method: string): boolean {
  const { paths } = readPublished()
  return method.toLowerCase() in Object(Object(paths)[path])
}

function readPublished(): { readonly paths?: unknown } {
  return JSON.parse(readFileSync(join(CONTRACT_DIR, 'openapi.json'), 'utf8'))
}
