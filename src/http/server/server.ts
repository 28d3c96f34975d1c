import type { IncomingMessage } from 'node:http'
import { fastify, type FastifyInstance, type FastifyPluginAsync, type FastifyRequest } from 'fastify'
import { Histogram, type Registry } from 'prom-client'
import { OPERATIONS } from '../../contract/operations.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { makeFairTurns } from '../../lib/turns/fair-turns.ts'
import type { Log } from '../../lib/log.ts'
import type { Uuids } from '../../lib/uuid.ts'
import { closeGracefully } from '../connections/close-gracefully.ts'
import { refuseMalformed, refuseUnsupportedRequests } from '../connections/early-refusals.ts'
import { makeChunkPacer } from '../connections/pace-chunks.ts'
import { divertRequests, type Diversion } from '../connections/divert-requests.ts'
import { limitConnections, limitPipelining, type ConnectionLimits } from '../connections/limit-connections.ts'
import { makeHandlers } from '../handlers/handlers.ts'
import { ChunkedRequest } from '../requests/bodies/chunked-request.ts'
import { acceptJsonBodies } from '../requests/bodies/json-bodies.ts'
import { makeStreamedBodies } from '../requests/bodies/streamed-bodies.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { PEERS_ARE_CLIENTS, type ClientAddresses } from '../requests/client-address.ts'
import type { RequestLimits } from '../requests/request-limits.ts'
import { makeRequestSignals } from '../requests/request-signals.ts'
import type { RequestTracer } from '../requests/trace-request.ts'
import { makeRouteTable, type RouteTable } from '../requests/route-table.ts'
import { makeSchemaCompiler } from '../requests/schemas/schema-compiler.ts'
import { makeSignInRoutes, type SignInOptions } from '../sign-in/sign-in-routes.ts'
import { agentRoute } from '../streams/agent-route.ts'
import { attachUpgrades, type UpgradeRoute } from '../streams/upgrades.ts'
import { addDashboardRoutes, sendPage, type Dashboard } from './dashboard-routes.ts'
import { delayLimitRefusals } from './delay-limit-refusals.ts'
import { addRoute, refuseUnrouted, routePath } from './routes.ts'
import { makeDeferReply } from './defer-reply.ts'
import { renderError, replyWithError } from './reply-with-error.ts'
import { addServiceRoutes } from './service-routes.ts'

export type ServerDeps = {
  readonly call: CallUseCase
  readonly log: Log
  readonly uuids: Uuids
  readonly metrics: Registry
  /** Reads metrics of other processes, in the text format. Their names differ from those of `metrics`. */
  readonly readMoreMetrics?: () => Promise<string>
  /** The bearer token for the metrics. Null or absent: only direct clients on the same machine get them. */
  readonly metricsKey?: string | null
  /** The reasons why the process can't serve requests, as readable texts. Empty if it can. */
  readonly unreadyReasons: () => Promise<readonly string[]>
  readonly settings: ServerSettings
  /** The limits on requests. Absent: no limits. */
  readonly limits?: RequestLimits
  /** Traces requests that start sandboxes. Absent: no traces. */
  readonly traceRequest?: RequestTracer
  /** The certificate and key for TLS, in PEM. Absent: the server speaks plain HTTP. */
  readonly tls?: { readonly cert: string; readonly key: string }
  /** Finds the addresses of clients. Absent: each connection's peer is its client. */
  readonly clients?: ClientAddresses
  /** Additional routes, such as those of workers. They authenticate their own callers. */
  readonly plugins?: readonly FastifyPluginAsync[]
  /** The built dashboard. Absent: there is none. */
  readonly dashboard?: Dashboard
  /** How members sign in. Absent: they can't, and no session is accepted. */
  readonly signIn?: SignInOptions
  /** Serves requests for other hosts than that of the API. Absent: the API serves them. */
  readonly diversion?: Diversion
  /** Additional WebSocket routes. They authenticate their own callers. */
  readonly upgrades?: readonly UpgradeRoute[]
}

export type ServerSettings = {
  /** The largest body of a request, in bytes. */
  readonly bodyLimitBytes: number
  /** How long a request may take to arrive, in milliseconds. It does not limit a streamed body that makes progress. */
  readonly requestTimeoutMs: number
  /** How long the head of a request may take to arrive, in milliseconds. Then the connection is closed. */
  readonly headTimeoutMs: number
  readonly connections: ConnectionLimits
  /** The interval of WebSocket pings, in milliseconds. A WebSocket that sends no pong within an interval is closed. */
  readonly pingMs: number
  /** The longest silence on a stream of events, in milliseconds. Then a comment is sent. */
  readonly keepAliveMs: number
  /** How much later than other refusals one for a limit is sent, in milliseconds, on average. */
  readonly limitRefusalDelayMs: number
}

export const DEFAULT_SERVER_SETTINGS: ServerSettings = {
  bodyLimitBytes: 4 * 1024 * 1024,
  requestTimeoutMs: 60_000,
  headTimeoutMs: 20_000,
  connections: { capacity: 32_768, perAddress: 16_384, checkIntervalMs: 10_000 },
  pingMs: 20_000,
  keepAliveMs: 10_000,
  limitRefusalDelayMs: 250,
}

/**
 * How long a connection may be silent before TCP probes it, in milliseconds. A peer that has vanished is detected 10 s
 * after the first probe.
 */
const TCP_KEEP_ALIVE_MS = 60_000

/**
 * The longest parameter of a path, in characters. A name of 128 bytes has 384 characters if every byte is
 * percent-encoded.
 */
const PARAM_MAX_CHARS = 1024

/** How long further requests of an organization begin in one turn of the event loop, in milliseconds. */
const BEGUN_IN_A_TURN_MS = 2
/** How long after a request of another organization the requests of one are spread over turns, in milliseconds. */
const OTHERS_MS = 1_000

/**
 * Creates the HTTP server of the API with routes, validation, authentication, errors and metrics. The server does not
 * listen yet. Its `close` closes its WebSockets with 1001.
 */
export function makeServer(deps: ServerDeps): FastifyInstance {
  const { call, settings } = deps
  const compileSchema = makeSchemaCompiler({ acceptsEmptyMembers: true })
  const requestIds = makeRequestIds(deps.uuids)
  const streamedBodies = makeStreamedBodies()
  const clients = deps.clients ?? PEERS_ARE_CLIENTS
  const chunks = makeChunkPacer(clients)
  const transport = {
    IncomingMessage: chunks.Request,
    shouldUpgradeCallback: ({ headers }: IncomingMessage) => headers.upgrade?.toLowerCase() === 'websocket',
    headersTimeout: Math.min(settings.headTimeoutMs, settings.requestTimeoutMs),
    connectionsCheckingInterval: Math.min(settings.headTimeoutMs, settings.requestTimeoutMs) / 4,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
    requireHostHeader: false, // `refuseUnsupportedRequests` replies with the error envelope
  }
  const app = fastify({
    logger: false,
    genReqId: () => requestIds.next(),
    requestIdHeader: false,
    bodyLimit: settings.bodyLimitBytes,
    requestTimeout: settings.requestTimeoutMs,
    return503OnClosing: false,
    routerOptions: { maxParamLength: PARAM_MAX_CHARS, querystringParser: () => ({}) },
    ...(deps.tls === undefined
      ? { http: transport }
      : { https: { ...transport, ...deps.tls, handshakeTimeout: settings.headTimeoutMs } }),
    clientErrorHandler: refuseMalformed(requestIds, streamedBodies),
    frameworkErrors: (error, request, reply) => {
      replyWithError(deps, error, { request, reply })
    },
  })
  const acceptsSessions = deps.signIn !== undefined
  const countProxied = limitConnections(app, { limits: settings.connections, ids: requestIds, clients })
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
    refuseUnrouted: async (exchange) =>
      (deps.dashboard === undefined ? null : sendPage(deps.dashboard, exchange)) ??
      (await refuseUnrouted({ ...deps, clients, acceptsSessions }, table, exchange)),
  })
  const delayIfLimited = delayLimitRefusals(settings.limitRefusalDelayMs)
  app.setErrorHandler(async (error, request, reply) => {
    if (request.raw instanceof ChunkedRequest) request.raw.dropChunks()
    await delayIfLimited(error)
    return replyWithError(deps, error, { request, reply })
  })

  const handlers = new Map(Object.entries(makeHandlers(call, compileSchema)))
  const idempotency = {
    call,
    bodyLimitBytes: settings.bodyLimitBytes,
    bytesOf: (request: FastifyRequest) => bodies.get(request),
  }
  const deferReply = makeDeferReply({
    closing,
    renderError: (error, request_id) => renderError(deps, error, { request_id }),
  })
  const signalOf = makeRequestSignals(closing)
  const turns = makeFairTurns({ budgetMs: BEGUN_IN_A_TURN_MS, othersForMs: OTHERS_MS, nowMs: () => performance.now() })
  const routeDeps = {
    ...deps,
    clients,
    acceptsSessions,
    signalOf,
    streamedBodies,
    idempotency,
    deferReply,
    callers,
    turns,
  }
  for (const operation of Object.values(OPERATIONS)) {
    const handler = handlers.get(operation.id)
    if (handler !== undefined) addRoute(app, routeDeps, { operation, handler })
  }
  addRoute(app, routeDeps, { operation: OPERATIONS.open_agent, handler: refusePlainAgentRequest })
  addServiceRoutes(app, deps)
  if (deps.dashboard !== undefined) addDashboardRoutes(app, deps.dashboard)
  if (deps.signIn !== undefined) app.register(makeSignInRoutes({ ...deps, clients, acceptsSessions }, deps.signIn))
  for (const plugin of deps.plugins ?? []) app.register(plugin)
  attachUpgrades(app, {
    ...deps,
    uuids: requestIds,
    clients,
    countProxied,
    routes: [agentRoute({ ...deps, acceptsSessions, compileSchema }), ...(deps.upgrades ?? [])],
  })
  if (deps.diversion !== undefined) divertRequests(app, deps.diversion, streamedBodies)
  chunks.attach(app.server)
  return app
}

function refusePlainAgentRequest(): Promise<string> {
  const details = { field: 'upgrade', seen: 'no WebSocket upgrade', accepted: 'upgrade: websocket' }
  throw new Problem('invalid_request', { message: 'invalid request: this route is a WebSocket', details })
}

/** Sets the request id of every reply, and records every request in the metrics and the log. */
function observeRequests(app: FastifyInstance, { metrics, log }: ServerDeps, table: RouteTable): void {
  const durations = new Histogram({
    name: 'sandyard_http_request_duration_seconds',
    help: 'From the arrival of a request to the end of its reply, by operation and status.',
    labelNames: ['operation', 'status'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100],
    registers: [metrics],
  })
  const names = new Map(
    Object.values(OPERATIONS).map((operation) => [`${operation.method} ${routePath(operation)}`, operation.id]),
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

/** The number of request ids that share one random UUID. They differ in its last three digits. */
const IDS_PER_DRAW = 4096

/**
 * Creates request ids that look like UUIDs. One in 4,096 is random; the ids after it differ only in the last three
 * digits, which count up. Ids may be guessable, because a request id protects nothing. Random UUIDs took an eighth of
 * the time of the cheapest request (2026-11).
 */
function makeRequestIds(uuids: Uuids): Uuids {
  let stem = ''
  let used = IDS_PER_DRAW
  return {
    next() {
      if (used === IDS_PER_DRAW) {
        stem = uuids.next().slice(0, -3)
        used = 0
      }
      const id = stem + used.toString(16).padStart(3, '0')
      used += 1
      return id
    },
  }
}
