import { makeChannelLimit } from '../../src/control/streams/concurrency-limit.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { holdSync } from '../../src/control/workers/hold-sync.ts'
import { makeLogStreamLimit } from '../../src/control/streams/concurrency-limit.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import type { TransitionDeps } from '../../src/control/sandboxes/transition.ts'
import type { SyncAnswer, SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import type { WorkerId } from '../../src/domain/ids.ts'
import type { PlacementPolicy } from '../../src/domain/workers/placement.ts'
import { isLaterReport } from '../../src/domain/workers/report-order.ts'
import type { Log } from '../../src/lib/log.ts'
import type { Random } from '../../src/lib/random.ts'
import { makeSeal } from '../../src/lib/seal.ts'
import { makeSemaphore } from '../../src/lib/semaphore.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { detectLostWorkers } from '../../src/loops/detect-lost-workers.ts'
import { enforceDeadlines } from '../../src/loops/enforce-deadlines.ts'
import { enforceHardLimits } from '../../src/loops/enforce-hard-limits.ts'
import { makeLeaderElection, type Leadership } from '../../src/loops/leader-election.ts'
import { runLoops, type Loop } from '../../src/loops/loop.ts'
import { placePending } from '../../src/loops/place-pending.ts'
import { reapVolumes } from '../../src/loops/reap-volumes.ts'
import { retireWorkers } from '../../src/loops/retire-workers.ts'
import { rollUpUsage } from '../../src/loops/roll-up-usage.ts'
import type { Database } from '../../src/store/postgres/database.ts'
import type { Gates, Life } from './gates.ts'
import { makeSimClock, type WallClock } from './sim-clock.ts'
import type { WakeBus } from './sim-wake.ts'

/** One life of a server process: the real control code, over the schedule's database, clock and wake-ups. */
export type Replica = {
  readonly life: Life
  /** For the requests of clients. */
  readonly deps: ControlDeps
  /** Whether it believes that it leads. */
  leads(): boolean
  /** Begins a pass of a loop if it leads and none is under way; what it rejects with is the loop's own affair, as in `runLoops`. */
  beginPass(loop: LoopName): void
  /** Serves a worker's sync, in the order that the route keeps. */
  sync(report: SyncRequest, signal: AbortSignal): Promise<SyncAnswer>
}

export const LOOPS = ['place', 'deadlines', 'pools', 'lost', 'reap', 'retire', 'roll_up'] as const
export type LoopName = (typeof LOOPS)[number]

export type ReplicaWorld = {
  readonly gates: Gates
  readonly databaseOf: (life: Life, work: string) => Database
  readonly bus: WakeBus
  readonly random: Random
  readonly log: Log
  readonly placement: PlacementPolicy
  /** Whether other processes may lead as well: then the lead is asked for. */
  readonly hasRivals: boolean
}

const SEALING_KEY = Buffer.alloc(32, 7)
const NO_TICKETS = { openTickets: () => [] }
const noStreams = (): Promise<never> => Promise.reject(new Error('no streams in a schedule'))

/** Starts a server process. */
export function bootReplica(world: ReplicaWorld, life: Life, wall: Readonly<WallClock>): Replica {
  const { gates, databaseOf, bus, random, log } = world
  const clock = makeSimClock(gates, life, wall)
  const base = makeControlDeps({
    db: databaseOf(life, 'api'),
    clock,
    random,
    uuids: makeUuids(clock, random),
    log,
    seal: makeSeal(SEALING_KEY, random),
    notifications: bus.of(life),
    waitPermits: makeSemaphore(10),
    logStreamLimit: makeLogStreamLimit({ perOrg: 1, inAll: 1 }),
    openStream: noStreams,
    dialChannel: noStreams,
    channelLimit: makeChannelLimit({ perSandbox: 1, perOrg: 1 }),
    settings: { stopGraceMs: 500, defaultRegistry: 'registry.example', placement: 'pack' },
  })
  const syncDeps = { ...base, db: databaseOf(life, 'sync'), tickets: NO_TICKETS }
  const never = new AbortController().signal
  const uuids = base.uuids
  let loops: Readonly<Record<LoopName, Loop>> | null = null
  let leading = never
  const begin = (fence: Leadership['fence'] | null): void => {
    loops = makeLoops((name) => ({ ...base, db: databaseOf(life, name), ...(fence === null ? {} : { fence }) }))
  }
  if (world.hasRivals) {
    const leadDeps = { ...base, db: databaseOf(life, 'lead'), holder: uuids.next() }
    const waiting = (leadership: Leadership): readonly Loop[] => {
      leading = leadership.lost
      begin((tx) => leadership.fence(tx))
      const run = (): Promise<null> =>
        new Promise((resolve) => {
          leading.addEventListener('abort', () => resolve(null), { once: true })
        })
      return [{ name: 'wait for the end of the lead', periodMs: 1_000, topics: [], run }]
    }
    void runLoops({ ...leadDeps, lead: makeLeaderElection(leadDeps, 'loops') }, waiting, never)
  } else begin(null)
  const leads = (): boolean => loops !== null && !leading.aborted

  const passing = new Set<Loop>()
  const pass = async (loop: Loop, signal: AbortSignal): Promise<void> => {
    try {
      await loop.run(signal)
    } catch (error) {
      log.debug({ error, name: loop.name }, 'a pass failed')
    }
    passing.delete(loop)
  }

  const beginPass = (name: LoopName): void => {
    const loop = loops?.[name]
    if (loop === undefined || !leads() || passing.has(loop)) return
    passing.add(loop)
    void pass(loop, leading)
  }
  base.notifications.subscribe('pending', () => beginPass('place'))

  type Held = { readonly report: SyncRequest; readonly release: AbortController; readonly answered: Promise<void> }
  const held = new Map<WorkerId, Held>()

  return {
    life,
    deps: base,
    leads,
    beginPass,
    async sync(report, signal) {
      const worker = report.worker_id
      const { promise: answered, resolve } = Promise.withResolvers<void>()
      const mine: Held = { report, release: new AbortController(), answered }
      const earlier = held.get(worker)
      if (earlier !== undefined && isLaterReport(earlier.report, report)) mine.release.abort(new Error('overtaken'))
      else held.set(worker, mine)
      try {
        if (held.get(worker) === mine && earlier !== undefined) {
          earlier.release.abort(new Error('a later sync arrived'))
          await earlier.answered
        }
        return await holdSync(syncDeps, worker, report, AbortSignal.any([signal, mine.release.signal]))
      } finally {
        resolve()
        if (held.get(worker) === mine) held.delete(worker)
      }
    },
  }
}

function makeLoops(
  over: (name: LoopName) => ControlDeps & Pick<TransitionDeps, 'fence'>,
): Readonly<Record<LoopName, Loop>> {
  return {
    place: placePending(over('place')),
    deadlines: enforceDeadlines(over('deadlines')),
    pools: enforceHardLimits(over('pools')),
    lost: detectLostWorkers(over('lost')),
    reap: reapVolumes(over('reap')),
    retire: retireWorkers(over('retire')),
    roll_up: rollUpUsage(over('roll_up')),
  }
}
