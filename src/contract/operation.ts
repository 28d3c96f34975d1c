import type { Static, TSchema } from 'typebox'
import type { Scope } from '../domain/orgs/caller.ts'
import type { ProblemCode } from '../domain/problem.ts'
import { requestObject } from './common.ts'

/**
 * One operation of the API. Its route, its validation and its part of the OpenAPI document are derived from this
 * definition.
 */
export type Operation<
  Params extends TSchema = TSchema,
  Query extends TSchema = TSchema,
  Body extends TSchema = TSchema,
> = {
  /** The `operationId` in the OpenAPI document, and the operation's name in metrics. */
  readonly id: string
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** The path of the route, with `{name}` for each parameter. */
  readonly path: string
  readonly tag: string
  readonly summary: string
  readonly description?: string
  readonly params: Params
  readonly query: Query
  /** The schema of the body. `NoBody` accepts an absent body and `{}`, which the public client sends. */
  readonly body: Body
  readonly reply: Reply
  /** The problems of this operation in addition to those of every operation, which `problemsOf` adds. */
  readonly problems: readonly ProblemCode[]
  readonly access: Access
  /**
   * The request headers that only this operation has, for the OpenAPI document. The operation's handler checks them.
   */
  readonly headers?: TSchema
  /** `bytes`: the request body is a stream of bytes with any content type, and `body` is unused. */
  readonly takes?: 'bytes'
  /** Whether the operation checks `If-Match` in the transaction of its change. Other operations refuse the header. */
  readonly checksIfMatch?: true
  /**
   * What a retry of a POST with an Idempotency-Key does if the first attempt stored no reply. True: the operation runs
   * again, because its use case detects what the first attempt did. Absent: the retry gets `idempotency_reply_lost`.
   */
  readonly isResumable?: true
}

/**
 * The scope that the caller's API key, or the role of the member, must have. `none`: no key is needed. `operator`: an operator, who sees all
 * organizations.
 */
export type Access = Scope | 'none' | 'operator'

/** The successful reply of an operation. */
export type Reply =
  | JsonReply
  | { readonly kind: 'bytes'; readonly status: 200; readonly description: string }
  /** Server-Sent Events. `schema` describes the data of each event. */
  | { readonly kind: 'events'; readonly status: 200; readonly schema: TSchema; readonly description: string }
  | { readonly kind: 'text'; readonly status: 200; readonly description: string }
  | { readonly kind: 'websocket'; readonly status: 101; readonly description: string }

/** A JSON reply. `hasETag`: the reply is one object with an `ETag`, and the operation honours `If-None-Match`. */
export type JsonReply = {
  readonly kind: 'json'
  readonly status: 200
  readonly schema: TSchema
  readonly description: string
  readonly hasETag?: true
}

/** The parts of a request, validated against the operation's schemas. */
export type RequestOf<Of extends Operation> = {
  readonly params: Static<Of['params']>
  readonly query: Static<Of['query']>
  readonly body: Static<Of['body']>
}

export const NoParams = requestObject({})
export const NoQuery = requestObject({})
export const NoBody = requestObject({})

/**
 * Defines an operation. The defaults are: no parameters, no body, no problems of its own, and the scope of its method
 * (GET: read).
 */
export function defineOperation<
  Params extends TSchema = typeof NoParams,
  Query extends TSchema = typeof NoQuery,
  Body extends TSchema = typeof NoBody,
>(given: Parts<Params, Query, Body>): Operation<Params, Query, Body>
export function defineOperation(given: Partial<Operation> & Pick<Operation, RequiredParts>): Operation {
  const access = given.method === 'GET' ? 'read' : 'write'
  return { params: NoParams, query: NoQuery, body: NoBody, problems: [], access, ...given }
}
type RequiredParts = 'id' | 'method' | 'path' | 'tag' | 'summary' | 'reply'
type Parts<Params extends TSchema, Query extends TSchema, Body extends TSchema> = Pick<
  Operation<Params, Query, Body>,
  RequiredParts
> &
  Partial<Operation<Params, Query, Body>>

/** The definition of a JSON reply. */
export function jsonReply(schema: TSchema, description: string): Reply {
  return { kind: 'json', status: 200, schema, description }
}

/** The definition of a JSON reply that is one object with an `ETag`. */
export function taggedReply(schema: TSchema, description: string): Reply {
  return { kind: 'json', status: 200, schema, description, hasETag: true }
}

/** Every problem with which an operation may refuse a request. */
export function problemsOf(operation: Operation): readonly ProblemCode[] {
  if (operation.access === 'none') return operation.problems
  const takesBody = operation.method === 'GET' ? [] : (['payload_too_large', 'unsupported_media_type'] as const)
  const keyed = operation.method === 'POST' ? IDEMPOTENCY_PROBLEMS : []
  const matched = operation.checksIfMatch === true ? (['precondition_failed'] as const) : []
  return [...new Set([...COMMON_PROBLEMS, ...takesBody, ...keyed, ...matched, ...operation.problems])]
}

const IDEMPOTENCY_PROBLEMS = ['idempotency_key_reused', 'idempotency_key_in_use', 'idempotency_reply_lost'] as const
const COMMON_PROBLEMS = [
  'invalid_request',
  'invalid_api_key',
  'forbidden',
  'rate_limited',
  'internal_error',
  'unavailable',
] as const
