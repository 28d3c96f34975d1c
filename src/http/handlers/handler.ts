import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import type { TSchema } from 'typebox'
import { NoBody, type Operation, type RequestOf } from '../../contract/operation.ts'
import type { IdempotentAttempt, StoredReply } from '../../control/requests/idempotency.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { PageInput } from '../../control/requests/page.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { PAGE_DEFAULT } from '../../domain/requests/request-bounds.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { parseQuery } from '../requests/parse-query.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'

/**
 * A request whose caller is known. Its body is parsed JSON, or a stream if the operation takes bytes. Nothing is checked against the
 * schemas of the operation yet.
 */
export type AuthenticatedRequest = {
  readonly caller: Caller
  readonly url: string
  readonly headers: IncomingHttpHeaders
  readonly params: unknown
  readonly body: unknown
  /** A signal that is aborted when the client disconnects. A function, because most requests need none. */
  readonly signal: () => AbortSignal
  /** The attempt that this request is, if it has an Idempotency-Key. */
  readonly attempt: IdempotentAttempt | null
  /** The request's `If-Match`, for the object that it changes. */
  readonly ifMatch: IfMatch | null
}

/** A reply of bytes. */
export type ByteReply = { readonly content: Readable; readonly sizeBytes: number }

/** A reply of Server-Sent Events. Each text holds whole events. It ends when the request's signal is aborted. */
export type EventReply = { readonly events: AsyncIterable<string> }

/** A reply of one object as JSON text, with its ETag. */
export type TaggedReply = { readonly json: string; readonly tag: string }

/** The stored reply of an earlier request with the same Idempotency-Key. */
export type ReplayedReply = { readonly kept: StoredReply }

/** An object that comes later. `start` calls `onEnd` once, and returns how to end the wait early. */
export type DeferredReply = { readonly start: (onEnd: (end: TaggedReply | Error) => void) => () => void }

/** What a handler replies; a string is JSON text. */
export type HandlerReply = string | TaggedReply | DeferredReply | ByteReply | EventReply | ReplayedReply

/** A reply of one object, with the hash of its text as its ETag. */
export function taggedReply(json: string): TaggedReply {
  return { json, tag: etagOf(json) }
}

/**
 * Calls a use case of `src/control` with this process's dependencies: `call(getOrg, caller)` is `getOrg(deps, caller)`. Tests
 * of the transport put fakes in place of single use cases here.
 */
export type CallUseCase = <Args extends readonly unknown[], Result>(
  useCase: (deps: ControlDeps, ...args: Args) => Result,
  ...args: Args
) => Result

/** Creates the `CallUseCase` of a process. */
export function callWith(deps: ControlDeps): CallUseCase {
  return (useCase, ...args) => useCase(deps, ...args)
}

/** Serves one operation: checks the request against the operation's schemas, and replies. Throws `Problem` to refuse it. */
export type Handler = (request: AuthenticatedRequest) => Promise<HandlerReply>

/** Creates the handler of an operation. `serve` gets the checked parts of the request, and the request as it came. */
export type HandlerFactory = <Params extends TSchema, Query extends TSchema, Body extends TSchema>(
  operation: Operation<Params, Query, Body>,
  serve: (request: RequestOf<Operation<Params, Query, Body>>, raw: AuthenticatedRequest) => Promise<HandlerReply>,
) => Handler

const noBody: TSchema = NoBody

/** Creates handlers that check the parameters of the path, then the query, then the body. */
export function makeHandlerFactory(compileSchema: SchemaCompiler): HandlerFactory {
  return (operation, serve) => {
    const parseParams = compileSchema(operation.params, 'path')
    const parseOfQuery = compileSchema(operation.query, 'query')
    const parseBody = compileSchema(operation.body, 'body')
    const takesBody: boolean = operation.body !== noBody
    return (raw) =>
      serve(
        {
          params: parseParams(raw.params),
          query: parseQuery(raw.url, operation.query, parseOfQuery),
          body: parseBody(operation.takes === 'bytes' ? {} : takesBody ? raw.body : (raw.body ?? {})),
        },
        raw,
      )
  }
}

/** The reply of an operation that only says that it was done. */
export function messageReply(message: string): string {
  return JSON.stringify({ message })
}

/** The page that a query asks for. */
export function pageInput(query: { readonly cursor?: string; readonly limit?: number }): PageInput {
  return { cursor: query.cursor ?? null, limit: query.limit ?? PAGE_DEFAULT }
}

type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

/** A page as the JSON text of a reply; `render` gives the JSON text of one item. */
export function renderPage<Item>({ items, nextCursor }: Page<Item>, render: (item: Item) => string): string {
  const data = renderList(items.map(render))
  return renderObject(
    {},
    { data, has_more: JSON.stringify(nextCursor !== null), next_cursor: JSON.stringify(nextCursor) },
  )
}

/** The instant of a parameter whose format was checked. Null if it is absent. */
export function parseInstant(text: string | undefined): Date | null {
  return text === undefined ? null : new Date(text)
}

/** Throws `invalid_request` for a field of the request. It repeats `seen`, so it is not for secrets. */
export function refuseField(field: string, seen: unknown, accepted: string): never {
  throw invalidRequest(field, seen, accepted)
}
