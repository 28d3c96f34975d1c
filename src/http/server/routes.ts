import type { ServerResponse } from 'node:http'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Operation } from '../../contract/operation.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeenPath } from '../../domain/refusal.ts'
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'
import type { FairTurns } from '../../lib/turns/fair-turns.ts'
import type { AuthenticatedRequest, Handler, HandlerReply } from '../handlers/handler.ts'
import { authenticateRequest, requireScope, senderOf, type AuthenticateDeps } from '../requests/authenticate-request.ts'
import { acceptStreamedBodies, type StreamedBodies } from '../requests/bodies/streamed-bodies.ts'
import type { ClientAddresses } from '../requests/client-address.ts'
import { parseIfMatch } from '../requests/conditional-requests.ts'
import {
  countReply,
  countStoredBody,
  takeStoredBody,
  enforceRequestLimits,
  requireReader,
  type RequestLimits,
} from '../requests/request-limits.ts'
import type { RequestTracer } from '../requests/trace-request.ts'
import type { RouteTable } from '../requests/route-table.ts'
import type { DeferReply } from './defer-reply.ts'
import { sendReply } from './send-reply.ts'
import { parseIdempotencyKey, serveIdempotently, type IdempotencyDeps } from './serve-idempotently.ts'

export type RouteDeps = AuthenticateDeps & {
  readonly clients: ClientAddresses
  readonly limits?: RequestLimits
  readonly traceRequest?: RequestTracer
  readonly settings: { readonly keepAliveMs: number }
  readonly signalOf: (response: ServerResponse) => AbortSignal
  readonly streamedBodies: StreamedBodies
  readonly idempotency: IdempotencyDeps
  readonly deferReply: DeferReply
  /** Requests that come together begin in several turns of the event loop, organizations in turn. */
  readonly turns: FairTurns
  /** The authenticated callers, by request. */
  readonly callers: WeakMap<FastifyRequest, Caller>
}

type Route = { readonly operation: Operation; readonly handler: Handler }
type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply }

/**
 * Adds the route of an operation. The route authenticates the caller before it reads the body, so unauthenticated
 * requests cost little.
 */
export function addRoute(app: FastifyInstance, deps: RouteDeps, route: Route): void {
  if (route.operation.takes === 'bytes') {
    app.register((scope) => {
      acceptStreamedBodies(scope)
      addRouteTo(scope, deps, route)
      return Promise.resolve()
    })
  } else addRouteTo(app, deps, route)
}

function addRouteTo(app: FastifyInstance, deps: RouteDeps, { operation, handler }: Route): void {
  const { callers, streamedBodies } = deps
  const takesJson = operation.takes !== 'bytes'
  const isStream = operation.takes === 'bytes' || operation.reply.kind === 'bytes' || operation.reply.kind === 'events'
  app.route({
    method: operation.method,
    url: routePath(operation),
    exposeHeadRoute: operation.method === 'GET' && !isStream,
    onRequest: async (request, reply) => {
      const caller = await authenticateRequest(deps, senderOf(deps.clients, request.raw))
      if (deps.limits !== undefined) enforceRequestLimits(deps.limits, caller, { request, reply, takesJson })
      requireScope(caller, operation.access)
      callers.set(request, caller)
      if (isStream) streamedBodies.begin(request, reply)
    },
    handler: async (request, reply) => {
      const caller = callers.get(request)
      if (caller === undefined) throw new Error('a request without a caller reached its handler')
      const { url, headers, params, body } = request
      const raw: AuthenticatedRequest = {
        caller,
        url,
        headers,
        params,
        body,
        attempt: null,
        traceParent: deps.traceRequest?.({ operation, request, reply }) ?? null,
        ifMatch: parseIfMatch(operation, headers),
        signal: () => deps.signalOf(reply.raw),
        requireReader: () => {
          requireReader(deps.limits, caller, reply.raw)
        },
        countStoredBody: (bytes) => {
          if (deps.limits !== undefined) countStoredBody(deps.limits, caller, bytes)
        },
        takeStoredBody: (bytes) => {
          if (deps.limits !== undefined) takeStoredBody(deps.limits, caller, bytes)
        },
      }
      const turn = deps.turns.next(caller.org_id)
      if (turn !== null) await turn
      const key = parseIdempotencyKey(operation, request)
      const answer =
        key === null
          ? await handler(raw)
          : await serveIdempotently(deps.idempotency, { key, operation, handler, request }, raw)
      const count = (counted: HandlerReply): void => {
        const isReport = typeof counted === 'object' && 'pieces' in counted
        const sent = { length: lengthOf(counted), isReport, response: reply.raw }
        if (deps.limits !== undefined) countReply(deps.limits, caller, sent)
      }
      if (typeof answer === 'object' && 'start' in answer)
        return deps.deferReply({ request, reply, operation }, answer, count)
      count(answer)
      return sendReply({ request, reply, operation }, answer, deps.settings)
    },
  })
}

/** The characters or bytes of JSON that a reply keeps in memory. A stream keeps none. */
function lengthOf(answer: HandlerReply): number {
  if (typeof answer === 'string') return answer.length
  if ('json' in answer) return answer.json.length
  const sent = 'replayed' in answer ? answer.replayed : answer
  if ('body' in sent) return sent.body.length
  return 'pieces' in sent ? totalBytes(sent.pieces) : 0
}

/** The path of an operation in the router's syntax: `:name` for a parameter. */
export function routePath({ path }: Pick<Operation, 'path'>): string {
  return path.replaceAll(/\{(\w+)\}/g, ':$1')
}

/**
 * Refuses a request without a route. The reply is 404, or 405 if the path has routes for other methods. OPTIONS is
 * answered with the methods of the path. Below /v1, only callers with a valid key see whether a path exists.
 */
export async function refuseUnrouted(
  deps: Pick<RouteDeps, 'call' | 'limits' | 'clients' | 'acceptsSessions'>,
  table: RouteTable,
  { request, reply }: Exchange,
): Promise<FastifyReply> {
  const path = request.url.split('?', 1)[0] ?? ''
  if (path.startsWith('/v1/')) {
    const caller = await authenticateRequest(deps, senderOf(deps.clients, request.raw))
    if (deps.limits !== undefined) enforceRequestLimits(deps.limits, caller, { request, reply, takesJson: false })
  }
  const methods = table.methodsFor(path)
  if (methods.length === 0)
    throw new Problem('not_found', {
      details: { field: 'path', seen: describeSeenPath(path), accepted: 'a path of /openapi.json' },
    })
  reply.header('allow', methods.join(', '))
  if (request.method === 'OPTIONS') return reply.code(204).send()
  throw new Problem('method_not_allowed', {
    details: { field: 'method', seen: request.method, accepted: methods.join(', ') },
  })
}
