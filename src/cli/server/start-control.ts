import { Server as TlsServer } from 'node:tls'
import { Registry } from 'prom-client'
import type { WebSocket } from 'ws'

import type { Config } from '../../config.ts'
import type { StreamPurpose } from '../../contract/workers/worker-protocol.ts'
import { makeChannelLimit, makeLogStreamLimit } from '../../control/requests/concurrency-limit.ts'
import { makeControlDeps, type ControlDeps } from '../../control/make-deps.ts'
import { makeStartTracer } from '../../control/sandboxes/transitions/trace-starts.ts'
import { observeTransitions } from '../../control/sandboxes/transitions/transition.ts'
import { adoptMachineClock } from '../../control/workers/machine-clock.ts'
import { explainOldestWaiting } from '../../control/workers/explain-waiting.ts'
import { makeReplicas } from '../../control/workers/replicas.ts'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import { makeStreamTickets } from '../../control/streams/stream-tickets.ts'
import { HOUR_MS } from '../../domain/usage/metering.ts'
import { RETRY_SCHEDULE } from '../../domain/webhooks/retry-schedule.ts'
import { makePreviewSites } from './preview-site.ts'
import { systemClock, wallAheadMs } from '../../lib/clock.ts'
import { makeOpenStream } from '../../http/workers/open-stream.ts'
import { descriptorLimit } from '../../lib/descriptor-limit.ts'
import type { Log } from '../../lib/log.ts'
import { bufferedRandom, systemRandom } from '../../lib/random.ts'
import { keyFingerprint, makeSeal } from '../../lib/seal.ts'
import { makeSemaphore } from '../../lib/turns/semaphore.ts'
import { makeUuids } from '../../lib/uuid.ts'
import { makeLeaderElection } from '../../loops/leader-election.ts'
import { runLoops } from '../../loops/loop.ts'
import { leadWebhooks, WEBHOOKS_LEAD } from '../../loops/webhooks/lead-webhooks.ts'
import { makeRelay } from '../../relay/relay.ts'
import { openNotifications } from '../../store/postgres/notifications.ts'
import { advertisedUrl, listenUrl, MISSING_URL_WARNING } from './server-url.ts'
import type { DataFolder } from './data-folder.ts'
import { makeLifecycleObserver } from './lifecycle-observer.ts'
import { makeApi } from './make-api.ts'
import { describeListenError } from './listen-address.ts'
import { openOwnListener, sharedAddress } from './tls/own-listener.ts'
import { openNetworkDenials } from './network-denials.ts'
import { loopsOf, retentionOf } from './loops.ts'
import { countChannels } from '../metrics/channel-metrics.ts'
import { makeLoopMetrics } from '../metrics/loop-metrics.ts'
import { makeRunMetrics } from '../metrics/run-metrics.ts'
import { makeWebhookMetrics } from '../metrics/webhook-metrics.ts'
import { makeStartMetrics } from '../metrics/start-metrics.ts'
import { addServerMetrics } from '../metrics/server-metrics.ts'
import { openTracing } from './open-tracing.ts'
import { readinessOf } from './readiness.ts'
import { openTransport } from './tls/transport.ts'
import { readMachine, watchClock } from './watch-clock.ts'
import type { Store } from './open-store.ts'
import { openSsh } from './open-ssh.ts'
import { openWebhookSender } from './open-webhooks.ts'
import type { SshServer } from '../../ssh/server.ts'
import { printStatus } from '../print-status.ts'
import { VERSION } from '../version.ts'

/** A running control plane: its API listens and its loops run. */
export type RunningControl = {
  readonly deps: ControlDeps
  /** The URL of the API. */
  readonly url: string
  /** The URL on this machine at which nothing but this process answers. */
  readonly ownUrl: string
  /** The SHA-256 of the public key of the API's certificate now, in hex. Null for plain HTTP. */
  fingerprint(): string | null
  /** The file with the certificate if it is the installation's own, else null. */
  readonly ownCertificate: string | null
  /** The SSH server. Null if it is off or its port can't be used. */
  readonly ssh: Pick<SshServer, 'port' | 'fingerprint'> | null
  /** Whether the dashboard is served. */
  readonly hasDashboard: boolean
  /** How many other server processes used this database when this one started. */
  readonly others: number
  /** The metrics of this process, which its API shows. */
  readonly metrics: Registry
  /** Adds to `/metrics` what a function reads from another process, in the text format. */
  addMetrics(read: () => Promise<string>): void
  /** Adds a check to `/readyz`. The check resolves with the reason why the process is not ready, or with null. */
  addReadiness(check: () => Promise<string | null>): void
} & AsyncDisposable

/** The minimum time between two NOTIFY statements: see `store/postgres/notifications.ts`. */
const NOTIFY_WINDOW_MS = 5
/** A channel holds up to three descriptors. One organization may use at most a quarter of those of this process for channels. */
const DESCRIPTORS_PER_ORG_CHANNEL = 12

const REPLACED_KEY_WARNING =
  'WARNING: the sealing key is another one than at the last start. SSH clients see a new host key, and intercepted ' +
  'connections a new certificate authority. If this server has its own TLS certificate, workers need a new join token'

/**
 * Starts the API and the loops on an open database. Other server processes may use the same database. `index` numbers the processes that
 * share the port of the API.
 */
export async function startControl(
  config: Config,
  folder: DataFolder,
  store: Store,
  { log, index }: { readonly log: Log; readonly index: number },
): Promise<RunningControl> {
  const transport = await openTransport(config, { clock: systemClock, random: systemRandom, log, folder, index })
  if ((await requireSameSealingKey(store.db, keyFingerprint(folder.sealingKey))) === 'replaced')
    printStatus(REPLACED_KEY_WARNING)
  const machine = await readMachine()
  if (machine !== null) await adoptMachineClock({ db: store.db, clock: systemClock, log, machine })
  await using opened = new AsyncDisposableStack()
  const notifications = opened.use(
    await openNotifications({
      connectionString: store.connectionString,
      clock: systemClock,
      log,
      windowMs: NOTIFY_WINDOW_MS,
    }),
  )
  const random = bufferedRandom(systemRandom)
  const uuids = makeUuids(systemClock, random)
  const replica_id = uuids.next()
  const base = { db: store.db, clock: systemClock, log, notifications }
  const replicas = makeReplicas(base, {
    id: replica_id,
    version: VERSION,
    schema_version: store.schemaVersion,
    started_at: systemClock.now(),
  })
  const relay = makeRelay<StreamPurpose, WebSocket>({
    newTicket: () => systemRandom.bytes(24).toString('base64url'),
    onTicket: (worker, ticket) => tickets.announce(worker, ticket),
    onOver: (ticket) => tickets.withdraw(ticket),
  })
  const previews = makePreviewSites(config, transport.kind === 'tls' ? 'https' : 'http')
  const tickets = makeStreamTickets({ ...base, replicas, ownTickets: (worker) => relay.openTickets(worker) })
  const tracing = openTracing(config, { log, instance: replica_id })
  opened.defer(() => tracing?.close())
  const tracers = tracing === null ? [] : [makeStartTracer(tracing.tracer, systemClock)]
  const metrics = new Registry()
  const webhooks = openWebhookSender(config)
  opened.defer(() => webhooks.http.close())
  const loopMetrics = makeLoopMetrics(metrics, systemClock)
  const deps = makeControlDeps({
    ...base,
    ...observeTransitions([makeRunMetrics(metrics), makeStartMetrics(metrics), ...tracers]),
    ...makeLifecycleObserver(config, store, log),
    ...(tracing === null ? {} : { tracer: tracing.tracer }),
    random,
    uuids,
    seal: makeSeal(folder.sealingKey, systemRandom),
    waitPermits: makeSemaphore(config.waitCapacity),
    logStreamLimit: makeLogStreamLimit({ perOrg: config.logStreamsPerOrg, inAll: config.logStreamCapacity }),
    openStream: makeOpenStream(relay),
    dialChannel: countChannels(metrics, ({ worker_id, purpose }, signal) => relay.open(worker_id, purpose, signal)),
    channelLimit: makeChannelLimit({
      perSandbox: config.channelsPerSandbox,
      perOrg: Math.min(config.channelsPerOrg, Math.floor(descriptorLimit() / DESCRIPTORS_PER_ORG_CHANNEL)),
    }),
    webhooks,
    settings: {
      previews: () => previews.site(),
      stopGraceMs: config.stopGraceMs,
      defaultRegistry: config.defaultRegistry,
      maxDiskMib: config.diskMaxMib,
      placement: config.placement,
      networkDeny: await openNetworkDenials(
        config,
        {
          database: store.connectionString,
          controlPlane: () => [`http://${config.host}`, config.advertiseUrl ?? '', ...replicas.urls],
        },
        log,
      ),
      requireIsolation: config.requireIsolation,
      idempotencyKeptMs: config.keepIdempotencyKeysHours === 0 ? null : config.keepIdempotencyKeysHours * HOUR_MS,
    },
  })

  const checks = readinessOf(store, log)
  const moreMetrics: (() => Promise<string>)[] = []
  const unreadyReasons = async () =>
    (await Promise.all(checks.map((check) => check()))).filter((reason) => reason !== null)
  addServerMetrics(metrics, {
    ...deps,
    version: VERSION,
    isLeading: loopMetrics.isLeading,
    explainOldestWaiting: () => explainOldestWaiting(deps),
    unreadyReasons,
    replicas,
    relay,
    connectionPools: () => store.db.poolUse(),
    permits: {
      waits: { inUse: () => deps.waitPermits.inUse, max: config.waitCapacity },
      log_streams: { inUse: () => deps.logStreamLimit.permitsInUse, max: config.logStreamCapacity },
      channels: { inUse: () => deps.channelLimit.permitsInUse, max: null },
    },
    dataDir: config.dataDir,
    certificate: () => (transport.kind === 'tls' ? transport.pair().cert : null),
    workerSeriesMax: config.metricsWorkers,
  })
  const { server, rates, hasDashboard } = await makeApi(config, {
    deps,
    transport,
    previews,
    tickets,
    replicas,
    relay,
    tracing,
    metrics,
    readMoreMetrics: async () => (await Promise.all(moreMetrics.map((read) => read()))).join(''),
    unreadyReasons,
  })
  // On shutdown, or when a step below fails, these run in the opposite order.
  const running: Promise<void>[] = []
  opened.defer(async () => void (await Promise.all(running)))
  const listeners = opened.use(new AsyncDisposableStack())
  opened.defer(() => server.close())
  const stopping = new AbortController()
  opened.defer(() => stopping.abort(new Error('the server is shutting down')))

  const isAlone = config.databaseUrl === null && config.processes === 1
  running.push(
    runLoops(
      {
        clock: systemClock,
        log,
        notifications,
        observer: loopMetrics.observer,
        acquireLeadership: makeLeaderElection({ ...deps, holder: replica_id, isAlone }, 'loops'),
      },
      ({ fence }) => loopsOf({ ...deps, fence, retention: retentionOf(config) }),
      stopping.signal,
    ),
  )
  running.push(
    leadWebhooks(
      { ...deps, schedule: RETRY_SCHEDULE, observer: makeWebhookMetrics(metrics) },
      makeLeaderElection({ ...deps, holder: replica_id, isAlone }, WEBHOOKS_LEAD),
      stopping.signal,
    ),
  )
  try {
    await server.listen(sharedAddress(config))
  } catch (error) {
    throw describeListenError(error, config)
  }
  const url = listenUrl(transport, config.host, server.server.address())
  previews.listensOn(Number(new URL(url).port))
  if (transport.kind === 'tls' && server.server instanceof TlsServer)
    running.push(transport.keepReloaded(server.server, stopping.signal))
  const own = listeners.use(await openOwnListener(config, { server: server.server, index }))
  const ownUrl = own === null ? url : listenUrl(transport, config.host, own)
  await replicas.announce(advertisedUrl(config, { url: ownUrl, hasOwnPort: own !== null }))
  running.push(replicas.keepAnnounced(stopping.signal), tickets.run(stopping.signal))
  if (machine !== null) running.push(watchClock({ ...base, machine, wallAheadMs }, stopping.signal))
  if (replicas.count > 1 && replicas.ownUrl === null) printStatus(MISSING_URL_WARNING)
  const ssh = await openSsh(deps, config, { rates, opened })
  const closing = opened.move()
  return {
    deps,
    url,
    ownUrl,
    ssh,
    metrics,
    hasDashboard,
    fingerprint: () => (transport.kind === 'tls' ? transport.fingerprint() : null),
    ownCertificate: transport.kind === 'tls' ? transport.ownFile : null,
    others: replicas.count - 1,
    addMetrics: (read) => moreMetrics.push(read),
    addReadiness: (check) => checks.push(check),
    [Symbol.asyncDispose]: () => closing.disposeAsync(),
  }
}
