import type { Static, TSchema } from 'typebox'
import type { Scope } from '../domain/orgs/caller.ts'
import type { ProblemCode } from '../domain/problem.ts'
import { requestObject } from './common.ts'

/** One operation of the API: the route, its validation, and its entry in the document all come from this. */
export type Operation<
  Params extends TSchema = TSchema,
  Query extends TSchema = TSchema,
  Body extends TSchema = TSchema,
> = {
  /** The document's `operationId`, and the operation's name in metrics. */
  readonly id: string
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  /** With `{name}` for a parameter. */
  readonly path: string
  readonly tag: string
  readonly summary: string
  readonly description?: string
  readonly params: Params
  readonly query: Query
  /** `NoBody`: an absent body or `{}`, which the public client sends. */
  readonly body: Body
  readonly reply: Reply
  /** The refusals of its own; those of every operation are added by `problemsOf`. */
  readonly problems: readonly ProblemCode[]
  /** The scope that the caller's key must have; `none`: open to everybody. */
  readonly access: Scope | 'none'
  /** Request headers of its own that it reads, for the document; the handler checks them. */
  readonly headers?: TSchema
  /** `bytes`: the body is any bytes, streamed, whatever its content type says; `body` is then unused. */
  readonly takes?: 'bytes'
  /** Whether `If-Match` is looked at, within the transaction of the change; elsewhere it is refused. */
  readonly checksIfMatch?: true
  /**
   * Of a POST: whether a request under an Idempotency-Key whose first try ended without a reply is served again, because its
   * use case then finds what was done. One that isn't is refused: `idempotency_reply_lost`.
   */
  readonly isResumable?: true
}

/** What an operation answers when all is well. */
export type Reply =
  | JsonReply
  | { readonly kind: 'bytes'; readonly status: 200; readonly description: string }
  /** Server-Sent Events; `schema`: the data of those that have any. */
  | { readonly kind: 'events'; readonly status: 200; readonly schema: TSchema; readonly description: string }
  | { readonly kind: 'text'; readonly status: 200; readonly description: string }
  | { readonly kind: 'websocket'; readonly status: 101; readonly description: string }

/** `taggedReply`: one object, with its `ETag`; `If-None-Match` is looked at. */
export type JsonReply = {
  readonly kind: 'json'
  readonly status: 200
  readonly schema: TSchema
  readonly description: string
  readonly hasETag?: true
}

/** A request whose parts were checked against their schemas. */
export type RequestOf<Of extends Operation> = {
  readonly params: Static<Of['params']>
  readonly query: Static<Of['query']>
  readonly body: Static<Of['body']>
}

export const NoParams = requestObject({})
export const NoQuery = requestObject({})
export const NoBody = requestObject({})

/** A row of the table: what is not given takes nothing, refuses nothing of its own, and needs the scope of its method. */
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

/** A reply of JSON. */
export function jsonReply(schema: TSchema, description: string): Reply {
  return { kind: 'json', status: 200, schema, description }
}

/** A reply of one object, with its `ETag`. */
export function taggedReply(schema: TSchema, description: string): Reply {
  return { kind: 'json', status: 200, schema, description, hasETag: true }
}

/** Every refusal that an operation may answer with. */
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
