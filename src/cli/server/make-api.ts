import type { FastifyInstance } from 'fastify'
import type { WebSocket } from 'ws'
import type { Config } from '../../config.ts'
import type { StreamPurpose } from '../../contract/workers/worker-protocol.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import type { StreamTickets } from '../../control/streams/stream-tickets.ts'
import type { Replicas } from '../../control/workers/replicas.ts'
import { callWith } from '../../http/requests/call-use-case.ts'
import { makeClientAddresses } from '../../http/requests/client-address.ts'
import type { RequestLimits } from '../../http/requests/request-limits.ts'
import { makeRequestTracer } from '../../http/requests/trace-request.ts'
import { makeServer, type ServerDeps } from '../../http/server/server.ts'
import { makeJoinRoute } from '../../http/workers/join-route.ts'
import { makeSnapshotFilesRoute } from '../../http/workers/snapshot-files-route.ts'
import { makeStandByRoute, makeStreamRoute, makeSyncRoute } from '../../http/workers/worker-routes.ts'
import { systemClock } from '../../lib/clock.ts'
import { makePreviewProxy } from '../../preview/preview-proxy.ts'
import type { Relay } from '../../relay/relay.ts'
import { joiningPods } from './joining-pods.ts'
import { loadDashboard } from './load-dashboard.ts'
import { openProvider } from './open-provider.ts'
import type { Tracing } from './open-tracing.ts'
import type { PreviewSites } from './preview-site.ts'
import { serverLimits } from './server-limits.ts'
import type { Transport } from './tls/transport.ts'

type ApiParts = Pick<ServerDeps, 'metrics' | 'readMoreMetrics' | 'unreadyReasons'> & {
  readonly deps: ControlDeps
  readonly transport: Transport
  readonly previews: PreviewSites
  readonly tickets: StreamTickets
  readonly replicas: Replicas
  readonly relay: Relay<StreamPurpose, WebSocket>
  /** Null: there are no traces. */
  readonly tracing: Tracing | null
}

/** Makes the API of a process, with its previews, the dashboard, and the routes for workers. It doesn't listen yet. */
export async function makeApi(
  config: Config,
  { deps, transport, previews, tickets, replicas, relay, tracing, ...observed }: ApiParts,
): Promise<{
  readonly server: FastifyInstance
  readonly rates: RequestLimits['rates']
  readonly hasDashboard: boolean
}> {
  const { settings, limits } = serverLimits(config)
  const { rates } = limits
  const clients = makeClientAddresses(config.trustedProxies ?? [])
  const gate = { control: deps, clients, rates }
  const { domain } = previews
  const scheme = previews.site()?.scheme ?? 'http'
  const addressOf: typeof clients.of = (request) => clients.of(request)
  const previewProxy =
    domain === null ? null : makePreviewProxy({ control: deps, domain, scheme, addressOf, ...(rates && { rates }) })
  const dashboard = config.dashboard === 'off' ? null : await loadDashboard()
  const server = makeServer({
    call: callWith(deps),
    log: deps.log,
    uuids: deps.uuids,
    ...observed,
    metricsKey: config.metricsKey,
    ...(tracing === null ? {} : { traceRequest: makeRequestTracer(tracing.tracer, systemClock) }),
    settings,
    limits,
    clients,
    ...(transport.kind === 'tls' ? { tls: transport.pair() } : {}),
    plugins: [
      makeSyncRoute({ ...gate, tickets, replicas }),
      makeJoinRoute({ ...deps, ...joiningPods(config, process.env) }, gate),
    ],
    ...(previewProxy === null ? {} : { diversion: previewProxy }),
    ...(dashboard === null ? {} : { dashboard }),
    ...(config.dashboard === 'off' ? {} : { signIn: { oidc: openProvider(config, deps.log) } }),
    upgrades: [makeStandByRoute({ ...gate, relay }), makeStreamRoute({ ...gate, relay }), makeSnapshotFilesRoute(gate)],
  })
  return { server, rates, hasDashboard: dashboard !== null }
}
