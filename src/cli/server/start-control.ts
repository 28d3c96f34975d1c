import type { AddressInfo } from 'node:net'
import { createWebSocketStream, type WebSocket } from 'ws'

import type { Config } from '../../config.ts'
import type { StreamPurpose } from '../../contract/workers/worker-protocol.ts'
import { makeChannelLimit, makeLogStreamLimit } from '../../control/streams/concurrency-limit.ts'
import { makeControlDeps, type ControlDeps } from '../../control/make-deps.ts'
import { makeReplicas } from '../../control/workers/replicas.ts'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import { makeStreamTickets } from '../../control/streams/stream-tickets.ts'
import type { TransitionDeps } from '../../control/sandboxes/transition.ts'
import { asId, type OrgId } from '../../domain/ids.ts'
import { callWith } from '../../http/handlers/handler.ts'
import { makeServer } from '../../http/server/server.ts'
import { makeJoinRoute } from '../../http/workers/join-route.ts'
import { makeStandByRoute, makeStreamRoute, makeSyncRoute } from '../../http/workers/worker-routes.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { bufferedRandom, systemRandom } from '../../lib/random.ts'
import { keyFingerprint, makeSeal } from '../../lib/seal.ts'
import { makeSemaphore } from '../../lib/semaphore.ts'
import { makeUuids } from '../../lib/uuid.ts'
import { detectLostWorkers } from '../../loops/detect-lost-workers.ts'
import { enforceDeadlines } from '../../loops/enforce-deadlines.ts'
import { enforceHardLimits } from '../../loops/enforce-hard-limits.ts'
import { makeLeaderElection } from '../../loops/leader-election.ts'
import { runLoops, type Loop } from '../../loops/loop.ts'
import { placePending } from '../../loops/place-pending.ts'
import { reapVolumes } from '../../loops/reap-volumes.ts'
import { retireWorkers } from '../../loops/retire-workers.ts'
import { pruneIdempotencyKeys, pruneWorkerTokens, pruneStreamTickets } from '../../loops/prune.ts'
import { rollUpUsage } from '../../loops/roll-up-usage.ts'
import { makeRelay } from '../../relay/relay.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { openNotifications } from '../../store/postgres/notifications.ts'
import type { DataFolder } from './data-folder.ts'
import { makeMetrics } from './metrics.ts'
import { serverLimits } from './limits-of.ts'
import type { Store } from './open-store.ts'
import { printStatus } from '../print-status.ts'
import { VERSION } from '../version.ts'

/** A control plane that serves. */
export type RunningControl = {
  readonly deps: ControlDeps
  /** Where the API is reached. */
  readonly url: string
  /** How many other server processes lived on this database when this one came. */
  readonly others: number
  /** Adds something that must hold before `/readyz` says ready; the answer is what is missing, or null. */
  addReadiness(check: () => Promise<string | null>): void
} & AsyncDisposable

/** NOTIFY at most once in this time: see `store/postgres/notifications.ts`. */
const WAKE_WINDOW_MS = 5

/** Starts the API and the loops over an open database, beside all others on it. */
export async function startControl(
  config: Config,
  folder: DataFolder,
  store: Store,
  log: Log,
): Promise<RunningControl> {
  await requireSameSealingKey(store.db, keyFingerprint(folder.sealingKey))
  const notifications = await openNotifications({
    connectionString: store.connectionString,
    clock: systemClock,
    log,
    windowMs: WAKE_WINDOW_MS,
  })
  const random = bufferedRandom(systemRandom)
  const uuids = makeUuids(systemClock, random)
  const replica_id = uuids.next()
  const basis = { db: store.db, clock: systemClock, log, notifications }
  const replicas = makeReplicas(basis, {
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
  const tickets = makeStreamTickets({ ...basis, replicas, ownTickets: (worker) => relay.openTickets(worker) })
  const deps = makeControlDeps({
    ...basis,
    random,
    uuids,
    seal: makeSeal(folder.sealingKey, systemRandom),
    waitPermits: makeSemaphore(config.waitCapacity),
    logStreamLimit: makeLogStreamLimit({ perOrg: config.logStreamsPerOrg, inAll: config.logStreamCapacity }),
    openStream: async ({ worker_id, asked }, signal) => {
      const socket = await relay.open(worker_id, asked, signal)
      return socket === null ? null : createWebSocketStream(socket)
    },
    dialChannel: ({ worker_id, asked }, signal) => relay.open(worker_id, asked, signal),
    channelLimit: makeChannelLimit({ perSandbox: config.channelsPerSandbox, perOrg: config.channelsPerOrg }),
    settings: { stopGraceMs: config.stopGraceMs, defaultRegistry: config.defaultRegistry, placement: config.placement },
  })

  const stopping = new AbortController()
  const loops = runLoops(
    {
      clock: systemClock,
      log,
      notifications,
      acquireLeadership: makeLeaderElection({ ...deps, holder: replica_id }, 'loops'),
    },
    ({ fence }) => loopsOf({ ...deps, fence }),
    stopping.signal,
  )
  const checks: (() => Promise<string | null>)[] = [
    () => canReach(store, log),
    () => Promise.resolve(whyNotHeld(store)),
  ]
  const limited = serverLimits(config)
  const gate = { control: deps, rates: limited.limits.rates }
  const server = makeServer({
    call: callWith(deps),
    log,
    uuids,
    metrics: makeMetrics({ ...deps, replicas }),
    unreadyReasons: async () => (await Promise.all(checks.map((check) => check()))).filter((reason) => reason !== null),
    ...limited,
    plugins: [makeSyncRoute({ ...gate, tickets, replicas }), makeJoinRoute(deps, gate.rates)],
    upgrades: [makeStandByRoute({ ...gate, relay }), makeStreamRoute({ ...gate, relay })],
  })
  const keeping: Promise<void>[] = [loops]
  const close = async (): Promise<void> => {
    stopping.abort(new Error('the server is shutting down'))
    await server.close()
    await Promise.all(keeping)
    await notifications[Symbol.asyncDispose]()
  }
  try {
    await server.listen({ host: config.host, port: config.port })
  } catch (error) {
    await close()
    throw whyNotListening(error, config)
  }
  const url = urlOf(config.host, server.server.address())
  try {
    await replicas.announce(advertised(config, url))
  } catch (error) {
    await close()
    throw error
  }
  keeping.push(replicas.keepAnnounced(stopping.signal), tickets.run(stopping.signal))
  if (replicas.count > 1 && replicas.ownUrl === null) printStatus(NO_URL)
  return {
    deps,
    url,
    others: replicas.count - 1,
    addReadiness: (check) => checks.push(check),
    [Symbol.asyncDispose]: close,
  }
}

/** The system's own words say neither what was wanted nor what to do. */
function whyNotListening(error: unknown, { host, port }: Config): Error {
  const code = error instanceof Error && 'code' in error ? error.code : null
  const where = `${host}, port ${String(port)}`
  if (code === 'EADDRINUSE')
    return new Error(`${where} is in use already: choose another port with --port or SANDYARD_PORT`, { cause: error })
  return new Error(`the API can't listen on ${where}`, { cause: error })
}

/** What only the leader does. Each transaction that moves a sandbox or takes a volume away passes the fence first. */
function loopsOf(deps: ControlDeps & Required<Pick<TransitionDeps, 'fence'>>): readonly Loop[] {
  return [
    placePending(deps),
    enforceDeadlines(deps),
    enforceHardLimits(deps),
    detectLostWorkers(deps),
    reapVolumes(deps),
    retireWorkers(deps),
    rollUpUsage(deps), // it locks what it adds up: two at once add nothing twice
    pruneStreamTickets(deps),
    pruneIdempotencyKeys(deps),
    pruneWorkerTokens(deps),
  ]
}

/** An organization that there is not. */
const NO_ORG = asId<OrgId>('00000000-0000-0000-0000-000000000000')

/**
 * Why the database can't be used: requests and the program's own work have connections of their own, and need both. Its
 * words may name hosts and users: they are for the log, and anybody may ask whether this process is ready.
 */
async function canReach({ db }: Store, log: Log): Promise<string | null> {
  const ask = (q: Queryable) => q.query({ text: 'SELECT 1 AS alive' })
  try {
    await Promise.all([db.asSystem(ask), db.asOrg(NO_ORG, ask)])
    return null
  } catch (error) {
    log.warn({ error }, 'not ready: the database can’t be reached')
    return 'the database can’t be reached; the log says more'
  }
}

function whyNotHeld({ schema }: Store): string | null {
  return schema.isHeld ? null : 'the schema is not held: a migration may be under way'
}

const WILDCARDS = ['0.0.0.0', '::']

/** How workers reach this process, as far as it can know. */
function advertised({ advertiseUrl, host }: Config, url: string): string | null {
  return advertiseUrl ?? (WILDCARDS.includes(host) ? null : url)
}

const NO_URL =
  'other server processes run on this database, and it listens on all addresses: say by SANDYARD_ADVERTISE_URL or ' +
  '--advertise-url how workers reach this one, or streams for its clients fail where the worker syncs with another'

function urlOf(host: string, address: AddressInfo | string | null): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const shown = WILDCARDS.includes(host) ? '127.0.0.1' : host
  return `http://${shown.includes(':') ? `[${shown}]` : shown}:${String(port)}`
}
