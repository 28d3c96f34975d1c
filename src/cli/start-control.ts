import type { AddressInfo } from 'node:net'

import type { Config } from '../config.ts'
import type { ControlDeps } from '../control/deps.ts'
import { makeControlDeps } from '../control/make-deps.ts'
import { bindUseCases } from '../http/bind-use-cases.ts'
import { DEFAULT_SERVER_SETTINGS, makeServer } from '../http/server.ts'
import { makeStreamRoute, makeSyncRoute } from '../http/worker-routes.ts'
import { systemClock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import { pooledRandom, systemRandom } from '../lib/random.ts'
import { makeSeal } from '../lib/seal.ts'
import { makeSlots } from '../lib/slots.ts'
import { makeUuids } from '../lib/uuid.ts'
import { detectLostWorkers } from '../loops/detect-lost-workers.ts'
import { enforceDeadlines } from '../loops/enforce-deadlines.ts'
import { runLoop } from '../loops/loop.ts'
import { placePending } from '../loops/place-pending.ts'
import { makeRelay } from '../relay/relay.ts'
import { openWake } from '../store/wake.ts'
import type { DataFolder } from './data-folder.ts'
import { makeMetrics } from './metrics.ts'
import type { Store } from './open-store.ts'

/** A control plane that serves. */
export type RunningControl = {
  readonly deps: ControlDeps
  /** Where the API is reached. */
  readonly url: string
  /** Adds something that must hold before `/readyz` says ready; the answer is what is missing, or null. */
  addReadiness(check: () => Promise<string | null>): void
} & AsyncDisposable

/** NOTIFY at most once in this time: see `store/wake.ts`. */
const WAKE_WINDOW_MS = 5

/** Starts the API and the loops over an open database. */
export async function startControl(
  config: Config,
  folder: DataFolder,
  store: Store,
  log: Log,
): Promise<RunningControl> {
  const wake = await openWake({
    connectionString: store.connectionString,
    clock: systemClock,
    log,
    windowMs: WAKE_WINDOW_MS,
  })
  const relay = makeRelay({
    newTicket: () => systemRandom.bytes(24).toString('base64url'),
    onTicket: (worker) => {
      wake.publish([`worker:${worker}`])
    },
  })
  const random = pooledRandom(systemRandom)
  const uuids = makeUuids(systemClock, random)
  const deps = makeControlDeps({
    db: store.db,
    clock: systemClock,
    random,
    uuids,
    log,
    seal: makeSeal(folder.sealingKey, systemRandom),
    wake,
    waits: makeSlots(config.waitCapacity),
    openStream: ({ worker_id, run_id }, signal) => relay.open(worker_id, run_id, signal),
    settings: { stopGraceMs: config.stopGraceMs, defaultRegistry: config.defaultRegistry },
  })

  const stopping = new AbortController()
  const loops = [placePending(deps), enforceDeadlines(deps), detectLostWorkers(deps)].map((loop) =>
    runLoop(
      { clock: systemClock, log, wake, lead: (name, signal) => lead(store, name, signal) },
      loop,
      stopping.signal,
    ),
  )
  const checks: (() => Promise<string | null>)[] = [() => canReach(store)]
  const server = makeServer({
    useCases: bindUseCases(deps),
    log,
    uuids,
    metrics: makeMetrics({ ...deps, log }),
    isReady: async () => (await Promise.all(checks.map((check) => check()))).filter((reason) => reason !== null),
    settings: DEFAULT_SERVER_SETTINGS,
    plugins: [makeSyncRoute({ control: deps, relay })],
    upgrades: [makeStreamRoute({ control: deps, relay })],
  })
  await server.listen({ host: config.host, port: config.port })
  return {
    deps,
    url: urlOf(config.host, server.server.address()),
    addReadiness: (check) => checks.push(check),
    async [Symbol.asyncDispose]() {
      stopping.abort(new Error('the server is shutting down'))
      await server.close()
      await Promise.all(loops)
      await wake[Symbol.asyncDispose]()
    },
  }
}

/** How often a replica that does not run a loop asks whether it may. */
const LEAD_RETRY_MS = 1_000

async function lead(
  store: Store,
  name: string,
  signal: AbortSignal,
): ReturnType<Parameters<typeof runLoop>[0]['lead']> {
  for (;;) {
    signal.throwIfAborted()
    const lock = await store.db.tryLock(name)
    if (lock !== null) return lock
    await systemClock.sleep(LEAD_RETRY_MS, signal)
  }
}

async function canReach(store: Store): Promise<string | null> {
  try {
    await store.db.asSystem((q) => q.query({ text: 'SELECT 1 AS alive' }))
    return null
  } catch (error) {
    return error instanceof Error ? error.message : 'not reachable'
  }
}

function urlOf(host: string, address: AddressInfo | string | null): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const shown = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${shown.includes(':') ? `[${shown}]` : shown}:${String(port)}`
}
