import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import type { TSchema } from 'typebox'
import { NoBody, type Operation, type RequestOf } from '../../contract/operation.ts'
import type { IdempotentAttempt } from '../../control/requests/idempotency.ts'
import type { LargeStoredReply, StoredReply } from '../../control/requests/stored-reply.ts'
import type { PageInput } from '../../control/requests/page.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { etagOf, makeEtagHash, type IfMatch } from '../../domain/requests/etag.ts'
import { PAGE_DEFAULT } from '../../domain/requests/request-bounds.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { parseQuery } from '../requests/parse-query.ts'
import type { SchemaCompiler } from '../requests/schemas/schema-compiler.ts'
import { eachInTurns, encodeInTurns, LARGE_TEXT, nextTurn } from '../../lib/turns/next-turn.ts'

/**
 * A request whose caller is authenticated. Its body is parsed JSON, or a stream if the operation takes bytes. Nothing
 * has been validated against the operation's schemas yet.
 */
export type AuthenticatedRequest = {
  readonly caller: Caller
  readonly url: string
  readonly headers: IncomingHttpHeaders
  readonly params: unknown
  readonly body: unknown
  /**
   * Returns a signal that is aborted when the client disconnects. It is a function, because most requests need no
   * signal.
   */
  readonly signal: () => AbortSignal
  /**
   * Throws if a large reply would not be read, because the client has left, or because replies of its organization are unread. Call
   * it just before the work, after the waits for it.
   */
  readonly requireReader: () => void
  /** Counts a stored body that the request makes the server handle again, as if the request had sent it. */
  readonly countStoredBody: (bytes: number) => void
  /** The same before the server handles it. Throws `rate_limited` if the caller's limits don't allow it. */
  readonly takeStoredBody: (bytes: number) => void
  /** Which attempt this request is, if it has an Idempotency-Key. Null without a key. */
  readonly attempt: IdempotentAttempt | null
  /** The request's span, as a `traceparent`. Null: the request is not traced. */
  readonly traceParent: string | null
  /** The request's `If-Match` condition on the object to change. */
  readonly ifMatch: IfMatch | null
}

/** A reply of streamed bytes. */
export type ByteReply = { readonly content: Readable; readonly sizeBytes: number }

/**
 * A large reply of JSON text in pieces, as UTF-8. Joining and converting 25 MB of text held the thread for 220 ms and more, at a load
 * of 10. Sent in pieces, it held it for 25 ms (Node 24, 2026-11).
 */
export type PiecedReply = { readonly pieces: readonly Buffer[] }

/**
 * A reply of Server-Sent Events. Each text contains whole events. The stream ends when the request's signal is aborted.
 */
export type EventReply = { readonly events: AsyncIterable<string> }

/** A reply of one object as JSON text, with its ETag. A large one has its text in UTF-8 too. */
export type TaggedReply = { readonly json: string; readonly tag: string; readonly encoded?: readonly Buffer[] }

/** The stored reply of an earlier request with the same Idempotency-Key. */
export type ReplayedReply = { readonly replayed: StoredReply | LargeStoredReply }

/**
 * A reply that is not available yet. `start` begins to wait for it and returns a function that ends the wait early.
 * When the wait ends in any way, `start` calls `onEnd` once with the reply or an error.
 */
export type DeferredReply = { readonly start: (onEnd: (end: TaggedReply | Error) => void) => () => void }

/** The reply of a handler. A string is JSON text. */
export type HandlerReply = string | TaggedReply | DeferredReply | ByteReply | PiecedReply | EventReply | ReplayedReply

/** Creates a reply of one object. Its ETag is the hash of its text. */
export function taggedReply(json: string): TaggedReply {
  return { json, tag: etagOf(json) }
}

/**
 * The same for a large object, which is encoded and hashed in several turns of the event loop. Another thread would hash it no sooner,
 * because it would be copied for that.
 */
export async function largeTaggedReply(json: string): Promise<TaggedReply> {
  const encoded = await encodeInTurns(json)
  const hash = makeEtagHash()
  await nextTurn()
  await eachInTurns(encoded, hash.update)
  return { json, encoded, tag: hash.end() }
}

/**
 * Serves one operation: validates the request against the operation's schemas, and returns the reply. Throws `Problem`
 * to refuse the request.
 */
export type Handler = (request: AuthenticatedRequest) => Promise<HandlerReply>

/** Creates the handler of an operation. `serve` gets the validated parts of the request, and the request itself. */
export type HandlerFactory = <Params extends TSchema, Query extends TSchema, Body extends TSchema>(
  operation: Operation<Params, Query, Body>,
  serve: (request: RequestOf<Operation<Params, Query, Body>>, raw: AuthenticatedRequest) => Promise<HandlerReply>,
) => Handler

const noBody: TSchema = NoBody

/** Creates a factory for handlers that validate the path's parameters, then the query, then the body. */
export function makeHandlerFactory(compileSchema: SchemaCompiler): HandlerFactory {
  return (operation, serve) => {
    const parseParams = compileSchema(operation.params, 'path')
    const parseOfQuery = compileSchema(operation.query, 'query')
    const parseBody = compileSchema(operation.body, 'body')
    const takesBody: boolean = operation.body !== noBody
    return (raw) => {
      const request = {
        params: parseParams(raw.params),
        query: parseQuery(raw.url, operation.query, parseOfQuery),
        body: parseBody(operation.takes === 'bytes' ? {} : takesBody ? raw.body : (raw.body ?? {})),
      }
      const isLarge = Number(raw.headers['content-length'] ?? 0) > LARGE_TEXT
      return isLarge ? nextTurn().then(() => serve(request, raw)) : serve(request, raw)
    }
  }
}

/** Renders the reply of an operation that returns only a confirmation. */
export function messageReply(message: string): string {
  return JSON.stringify({ message })
}

/** The limit and cursor of the page that a query requests. */
export function pageInput(query: { readonly cursor?: string; readonly limit?: number }): PageInput {
  return { cursor: query.cursor ?? null, limit: query.limit ?? PAGE_DEFAULT }
}

type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

/** Renders a page as the JSON text of a reply. `render` returns the JSON text of one item. */
export function renderPage<Item>({ items, nextCursor }: Page<Item>, render: (item: Item) => string): string {
  const data = renderList(items.map(render))
  return renderObject(
    {},
    { data, has_more: JSON.stringify(nextCursor !== null), next_cursor: JSON.stringify(nextCursor) },
  )
}

/** Parses the instant of a parameter whose format was validated. Null if the parameter is absent. */
export function parseInstant(text: string | undefined): Date | null {
  return text === undefined ? null : new Date(text)
}

/** Throws `invalid_request` for a field of the request. The message contains `seen`, so don't pass secrets. */
export function refuseField(field: string, seen: unknown, accepted: string): never {
  throw invalidRequest(field, seen, accepted)
}
