import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import type { TSchema } from 'typebox'
import { NoBody, type Operation, type RequestOf } from '../../contract/operation.ts'
import type { IdempotentAttempt, StoredReply } from '../../control/requests/idempotency.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { parseQuery } from '../requests/parse-query.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'

/**
 * A request as the server hands it over: authenticated, its body parsed as JSON, or a stream where the operation takes bytes,
 * nothing else looked at.
 */
export type AuthenticatedRequest = {
  readonly caller: Caller
  readonly url: string
  readonly headers: IncomingHttpHeaders
  readonly params: unknown
  readonly body: unknown
  /** Aborted when the client leaves. A function, because most requests never ask. */
  readonly signal: () => AbortSignal
  /** Of a request under an Idempotency-Key. */
  readonly attempt: IdempotentAttempt | null
  /** What the request demands of the object that it changes. */
  readonly ifMatch: IfMatch | null
}

/** A reply of bytes. */
export type ByteReply = { readonly content: Readable; readonly sizeBytes: number }

/** A reply of Server-Sent Events: whole ones in each text. It ends by itself when the request's signal is aborted. */
export type EventReply = { readonly events: AsyncIterable<string> }

/** A reply of one object as JSON text, with its tag. */
export type TaggedReply = { readonly json: string; readonly tag: string }

/** A reply that was given before. */
export type ReplayedReply = { readonly kept: StoredReply }

/** An object that comes later: `start` calls `onEnd` once, and answers how to end the wait for it early. */
export type DeferredReply = { readonly start: (onEnd: (end: TaggedReply | Error) => void) => () => void }

/** JSON text, an object, an object that comes later, bytes, events, or what was answered before. */
export type HandlerReply = string | TaggedReply | DeferredReply | ByteReply | EventReply | ReplayedReply

/** An object as it is shown, with the tag of that. */
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

/** Makes the calls of a process. */
export function callWith(deps: ControlDeps): CallUseCase {
  return (useCase, ...args) => useCase(deps, ...args)
}

/** One operation ready to serve: checks the request by the operation's schemas, and answers. */
export type Handler = (request: AuthenticatedRequest) => Promise<HandlerReply>

/** Makes a handler of an operation and what it asks of the use cases. */
export type HandlerFactory = <Params extends TSchema, Query extends TSchema, Body extends TSchema>(
  operation: Operation<Params, Query, Body>,
  serve: (request: RequestOf<Operation<Params, Query, Body>>, raw: AuthenticatedRequest) => Promise<HandlerReply>,
) => Handler

const noBody: TSchema = NoBody

/** The one way in which requests are checked: parameters of path and query, then the body, each by its schema. */
export function makeHandlerFactory(makeParser: SchemaCompiler): HandlerFactory {
  return (operation, serve) => {
    const parseParams = makeParser(operation.params, 'path')
    const parseOfQuery = makeParser(operation.query, 'query')
    const parseBody = makeParser(operation.body, 'body')
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

type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

/** A page as the JSON text of a reply; `render` gives the JSON text of one item. */
export function renderPage<Item>({ items, nextCursor }: Page<Item>, render: (item: Item) => string): string {
  const data = renderList(items.map(render))
  return renderObject(
    {},
    { data, has_more: JSON.stringify(nextCursor !== null), next_cursor: JSON.stringify(nextCursor) },
  )
}

/** The instant of a parameter whose format was checked, or null. */
export function parseInstant(text: string | undefined): Date | null {
  return text === undefined ? null : new Date(text)
}

/** Throws `invalid_request` for a field. */
export function refuseField(field: string, seen: unknown, accepted: string): never {
  throw invalidRequest(field, seen, accepted)
}
