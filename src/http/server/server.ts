import type { ServerResponse } from 'node:http'
import { fastify, type FastifyInstance, type FastifyPluginAsync, type FastifyReply, type FastifyRequest } from 'fastify'
import { Histogram, type Registry } from 'prom-client'
import type { Operation } from '../../contract/operation.ts'
import { OPERATIONS } from '../../contract/operations.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import type { Log } from '../../lib/log.ts'
import type { Uuids } from '../../lib/uuid.ts'
import { agentRoute } from '../streams/agent-route.ts'
import { authenticateRequest, requireScope, senderOf } from '../handlers/authenticate-request.ts'
import { limitConnections, limitPipelining, type ConnectionLimits } from '../connections/limit-connections.ts'
import { acceptJsonBodies, acceptStreamedBodies, makeStreamedBodies, type StreamedBodies } from '../requests/bodies.ts'
import { makeRequestSignals } from '../requests/request-signals.ts'
import { parseIfMatch } from '../requests/conditional-requests.ts'
import { closeGracefully } from '../connections/close-gracefully.ts'
import type { AuthenticatedRequest, CallUseCase, Handler } from '../handlers/handler.ts'
import { makeHandlers } from '../handlers/handlers.ts'
import { parseIdempotencyKey, serveIdempotently, type IdempotencyDeps } from './serve-idempotently.ts'
import { makeDeferReply, sendReply, type DeferReply } from './send-reply.ts'
import { addServiceRoutes } from './service-routes.ts'
import { problemOf, renderProblem, type ProblemReply } from '../requests/problem-reply.ts'
import { refuseMalformed, refuseUnsupportedRequests } from '../connections/early-refusals.ts'
import { makeRequestIds } from './request-ids.ts'
import { enforceRequestLimits, type RequestLimits } from '../requests/request-limits.ts'
import { makeRouteTable, type RouteTable } from '../streams/routes-of-path.ts'
import { attachUpgrades, type UpgradeRoute } from '../streams/upgrades.ts'
import { makeSchemaCompiler } from '../requests/schema-compiler.ts'

export type ServerDeps = {
  readonly call: CallUseCase
  readonly log: Log
  readonly uuids: Uuids
  readonly metrics: Registry
  /** What keeps the process from serving, in words; empty when it can. */
  readonly unreadyReasons: () => Promise<readonly string[]>
  readonly settings: ServerSettings
  /** What its callers may do at once, and how fast; without it, anything. */
  readonly limits?: RequestLimits
  /** Routes beside the API's, such as the workers'; they authenticate for themselves. */
  readonly plugins?: readonly FastifyPluginAsync[]
  /** WebSocket routes beside the API's; they authenticate for themselves. */
  readonly upgrades?: readonly UpgradeRoute[]
}

export type ServerSettings = {
  /** The largest body of a request, in bytes. */
  readonly bodyLimitBytes: number
  /** A whole request must have arrived after this, in milliseconds; a stream of bytes need only move. */
  readonly requestTimeoutMs: number
  /** The head of a request must have arrived after this, in milliseconds; a connection on which none comes is closed. */
  readonly headTimeoutMs: number
  readonly connections: ConnectionLimits
  /** How often a WebSocket is pinged, in milliseconds; one that misses a whole period is dropped. */
  readonly pingMs: number
  /** How long a stream of events says nothing at most, in milliseconds. */
  readonly keepAliveMs: number
}

export const DEFAULT_SERVER_SETTINGS: ServerSettings = {
  bodyLimitBytes: 4 * 1024 * 1024,
  requestTimeoutMs: 60_000,
  headTimeoutMs: 20_000,
  connections: { capacity: 32_768, perAddress: 16_384, checkIntervalMs: 10_000 },
  pingMs: 20_000,
  keepAliveMs: 10_000,
}

/**
 * How long a connection is silent before its peer is asked whether it is there, in milliseconds: one that vanished without a
 * word is noticed ten seconds later.
 */
const TCP_KEEP_ALIVE_MS = 60_000

/** The longest parameter of a path: a name of 128 bytes, each percent-encoded, is 384 characters. */
const PARAM_MAX_CHARS = 1024

/**
 * The HTTP server of the API: routes, validation, authentication, errors, metrics. It is built here and listens when
 * its caller says so; `close` ends its WebSockets with 1001.
 */
export function makeServer(deps: ServerDeps): FastifyInstance {
  const { call, settings } = deps
  const makeParser = makeSchemaCompiler()
  const requestIds = makeRequestIds(deps.uuids)
  const byteBodies = makeStreamedBodies()
  const app = fastify({
    logger: false,
    genReqId: () => requestIds.next(),
    requestIdHeader: false,
    bodyLimit: settings.bodyLimitBytes,
    requestTimeout: settings.requestTimeoutMs,
    return503OnClosing: false,
    routerOptions: { maxParamLength: PARAM_MAX_CHARS, querystringParser: () => ({}) },
    http: {
      shouldUpgradeCallback: ({ headers }) => headers.upgrade?.toLowerCase() === 'websocket',
      headersTimeout: Math.min(settings.headTimeoutMs, settings.requestTimeoutMs),
      connectionsCheckingInterval: Math.min(settings.headTimeoutMs, settings.requestTimeoutMs) / 4,
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
      requireHostHeader: false, // refused in the error envelope
    },
    clientErrorHandler: refuseMalformed(requestIds, byteBodies),
    frameworkErrors: (error, request, reply) => {
      replyWithError(deps, error, { request, reply })
    },
  })
  limitConnections(app, settings.connections, requestIds)
  limitPipelining(app.server)
  const closing = closeGracefully(app)
  const table = makeRouteTable()
  const bodies = new WeakMap<FastifyRequest, Buffer>()
  const callers = new WeakMap<FastifyRequest, Caller>()
  acceptJsonBodies(app, {
    senderOf: (request) => callers.get(request)?.org_id ?? '',
    onIdempotentBody: (request, bytes) => bodies.set(request, bytes),
  })
  observeRequests(app, deps, table)
  refuseUnsupportedRequests(app, {
    ids: requestIds,
    refuseUnrouted: (exchange) => refuseUnrouted(deps, table, exchange),
  })
  app.setErrorHandler((error, request, reply) => replyWithError(deps, error, { request, reply }))

  const handlers = new Map(Object.entries(makeHandlers(call, makeParser)))
  const keyed = {
    call,
    bodyLimitBytes: settings.bodyLimitBytes,
    bytesOf: (request: FastifyRequest) => bodies.get(request),
  }
  const deferReply = makeDeferReply({
    closing,
    renderError: (error, request_id) => renderError(deps, error, { request_id }),
  })
  const common = { signalOf: makeRequestSignals(closing), byteBodies, settings, keyed, deferReply, callers }
  for (const operation of Object.values(OPERATIONS)) {
    const handler = handlers.get(operation.id)
    if (handler !== undefined) addRoute(app, deps, { operation, handler, ...common })
  }
  addRoute(app, deps, { operation: OPERATIONS.open_agent, handler: refusePlainAgentRequest, ...common })
  addServiceRoutes(app, deps)
  for (const plugin of deps.plugins ?? []) app.register(plugin)
  attachUpgrades(app, {
    ...deps,
    uuids: requestIds,
    routes: [agentRoute({ ...deps, makeParser }), ...(deps.upgrades ?? [])],
  })
  return app
}

type Route = {
  readonly operation: Operation
  readonly handler: Handler
  readonly signalOf: (response: ServerResponse) => AbortSignal
  readonly byteBodies: StreamedBodies
  readonly settings: ServerSettings
  readonly keyed: IdempotencyDeps
  readonly deferReply: DeferReply
  /** Who sent a request, once it is known. */
  readonly callers: WeakMap<FastifyRequest, Caller>
}

type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply }

/** Who asks is settled before the body is read: a stranger costs little and learns nothing. */
function addRoute(app: FastifyInstance, deps: ServerDeps, route: Route): void {
  if (route.operation.takes === 'bytes') {
    app.register((scope) => {
      acceptStreamedBodies(scope)
      addRouteTo(scope, deps, route)
      return Promise.resolve()
    })
  } else addRouteTo(app, deps, route)
}

function addRouteTo(app: FastifyInstance, deps: ServerDeps, route: Route): void {
  const { operation, byteBodies, callers } = route
  const takesJson = operation.takes !== 'bytes'
  const isStream = operation.takes === 'bytes' || operation.reply.kind === 'bytes' || operation.reply.kind === 'events'
  app.route({
    method: operation.method,
    url: operation.path.replaceAll(/\{(\w+)\}/g, ':$1'),
    exposeHeadRoute: operation.method === 'GET' && !isStream,
    onRequest: async (request, reply) => {
      const caller = await authenticateRequest(deps, senderOf(request))
      if (deps.limits !== undefined) enforceRequestLimits(deps.limits, caller, { request, reply, takesJson })
      requireScope(caller, operation.access)
      callers.set(request, caller)
      if (isStream) byteBodies.begin(request, reply)
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
        ifMatch: parseIfMatch(operation, headers),
        signal: () => route.signalOf(reply.raw),
      }
      const { handler } = route
      const key = parseIdempotencyKey(operation, request)
      const answer =
        key === null
          ? await handler(raw)
          : await serveIdempotently(route.keyed, { key, operation, handler, request }, raw)
      if (typeof answer === 'object' && 'start' in answer)
        return route.deferReply({ request, reply, operation }, answer)
      return sendReply({ request, reply, operation }, answer, route.settings)
    },
  })
}

function refusePlainAgentRequest(): Promise<string> {
  const details = { field: 'upgrade', seen: 'no WebSocket upgrade', accepted: 'upgrade: websocket' }
  throw new Problem('invalid_request', { message: 'invalid request: this route is a WebSocket', details })
}

/** Gives every reply its request id, and every request its place in the metrics and the log. */
function observeRequests(app: FastifyInstance, { metrics, log }: ServerDeps, table: RouteTable): void {
  const durations = new Histogram({
    name: 'sandyard_http_request_duration_seconds',
    help: 'From the arrival of a request to the end of its reply, by operation and status.',
    labelNames: ['operation', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100],
    registers: [metrics],
  })
  const names = new Map(
    Object.values(OPERATIONS).map(({ id, method, path }) => [`${method} ${path.replaceAll(/\{(\w+)\}/g, ':$1')}`, id]),
  )
  app.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) table.add(one, url)
  })
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('x-request-id', request.id)
    done()
  })
  app.addHook('onResponse', (request, reply, done) => {
    const operation = names.get(`${request.method} ${request.routeOptions.url ?? ''}`) ?? 'other'
    durations.observe({ operation, status: reply.statusCode }, reply.elapsedTime / 1000)
    log.debug({ request_id: request.id, operation, status: reply.statusCode, ms: reply.elapsedTime }, 'request served')
    done()
  })
}

/** Answers with the problem that was thrown; what nobody expected is logged here, once. */
function replyWithError(deps: ServerDeps, error: unknown, { request, reply }: Exchange): FastifyReply {
  const { id, method, routeOptions, raw } = request
  // Who leaves in the middle of a body reads no answer, and must not fill the log.
  const problem = raw.destroyed && raw.complete === false ? invalidRequest('body', 'a part of it', 'all of it') : error
  const { status, headers, body } = renderError(deps, problem, { request_id: id, method, route: routeOptions.url })
  return reply.code(status).headers(headers).send(body)
}

type ErrorContext = { readonly request_id: string; readonly method?: string; readonly route?: string | undefined }

function renderError(deps: ServerDeps, error: unknown, about: ErrorContext): ProblemReply {
  const problem = problemOf(error, deps.settings.bodyLimitBytes)
  if (problem.code === 'internal_error') {
    deps.log.error({ ...about, err: problem.cause }, 'request failed')
  } else if (problem.code === 'unavailable' && problem.cause !== undefined)
    deps.log.warn({ ...about, err: problem.cause }, 'request refused: the database is away')
  return renderProblem(problem, about.request_id)
}

/** A path without a route is 404, one with a route for other methods 405; below /v1 only for who has a key. */
async function refuseUnrouted(
  deps: ServerDeps,
  table: RouteTable,
  { request, reply }: Exchange,
): Promise<FastifyReply> {
  const path = request.url.split('?', 1)[0] ?? ''
  if (path.startsWith('/v1/')) {
    const caller = await authenticateRequest(deps, senderOf(request))
    if (deps.limits !== undefined) enforceRequestLimits(deps.limits, caller, { request, reply, takesJson: false })
  }
  const methods = table.methodsFor(path)
  if (methods.length === 0)
    throw new Problem('not_found', {
      details: { field: 'path', seen: path.slice(0, 200), accepted: 'a path of /openapi.json' },
    })
  reply.header('allow', methods.join(', '))
  if (request.method === 'OPTIONS') return reply.code(204).send()
  throw new Problem('method_not_allowed', {
    details: { field: 'method', seen: request.method, accepted: methods.join(', ') },
  })
}
