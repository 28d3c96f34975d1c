import { makeChannelLimit } from '../../src/control/requests/concurrency-limit.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { holdSync } from '../../src/control/workers/hold-sync.ts'
import { renderAnswer } from '../../src/control/workers/render-answer.ts'
import { makeLogStreamLimit } from '../../src/control/requests/concurrency-limit.ts'
import { makeSyncOrder } from '../../src/control/workers/sync-order.ts'
import { makeControlDeps } from '../../src/control/make-deps.ts'
import type { FenceDeps } from '../../src/control/deps.ts'
import type { SyncAnswer, SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import type { PlacementPolicy } from '../../src/domain/workers/placement.ts'
import type { Log } from '../../src/lib/log.ts'
import type { Random } from '../../src/lib/random.ts'
import { makeSeal } from '../../src/lib/seal.ts'
import { makeSemaphore } from '../../src/lib/turns/semaphore.ts'
import { makeUuids } from '../../src/lib/uuid.ts'
import { makeDetectLostWorkersLoop } from '../../src/loops/detect-lost-workers.ts'
import { makeEnforceDeadlinesLoop } from '../../src/loops/enforce-deadlines.ts'
import { makeEnforceHardLimitsLoop } from '../../src/loops/enforce-hard-limits.ts'
import { makeLeaderElection, type Leadership } from '../../src/loops/leader-election.ts'
import { runLoops, type Loop } from '../../src/loops/loop.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeReapVolumesLoop } from '../../src/loops/reap-volumes.ts'
import { makeFinishDeparturesLoop } from '../../src/loops/finish-departures.ts'
import { makeRestartEndedLoop } from '../../src/loops/restart-ended.ts'
import { makeAddUpCountsLoop } from '../../src/loops/add-up-counts.ts'
import { makeRollUpUsageLoop } from '../../src/loops/roll-up-usage.ts'
import type { Database } from '../../src/store/postgres/database.ts'
import type { Gates, Incarnation } from './gates.ts'
import { makeSimClock, type WallClock } from './sim-clock.ts'
import type { NotificationBus } from './sim-notifications.ts'
import { makeTestWebhooks } from '../support/webhooks.ts'

/** One server process: the real control code with the schedule's database, clock and notifications. */
export type Replica = {
  readonly incarnation: Incarnation
  /** The dependencies of the use cases that serve clients' requests. */
  readonly deps: ControlDeps
  /** Whether the process believes that it is the leader. */
  isLeader(): boolean
  /** Starts a pass of a loop if this process leads and none is running. Errors are logged, as in `runLoops`. */
  beginPass(loop: LoopName): void
  /** Serves a worker's sync. A later sync of the same worker ends the earlier one, as in the HTTP route. */
  sync(report: SyncRequest, signal: AbortSignal): Promise<SyncAnswer>
}

export const LOOPS = ['place', 'deadlines', 'pools', 'lost', 'reap', 'retire', 'restart', 'roll_up', 'counts'] as const
export type LoopName = (typeof LOOPS)[number]

export type ReplicaWorld = {
  readonly gates: Gates
  readonly databaseOf: (incarnation: Incarnation, work: string) => Database
  readonly notifications: NotificationBus
  readonly random: Random
  readonly log: Log
  readonly placement: PlacementPolicy
  /** Whether other replicas exist. If so, a leader is elected; otherwise this replica always leads. */
  readonly hasRivals: boolean
}

const SEALING_KEY = Buffer.alloc(32, 7)
const NO_TICKETS = { openTickets: () => [] }
const refuseStreams = (): Promise<never> => Promise.reject(new Error('no streams in a schedule'))

/** Starts a server process on the schedule's database, network and clock. */
export function startReplica(world: ReplicaWorld, incarnation: Incarnation, wall: Readonly<WallClock>): Replica {
  const { gates, databaseOf, notifications, random, log } = world
  const clock = makeSimClock(gates, incarnation, wall)
  const base = makeControlDeps({
    db: databaseOf(incarnation, 'api'),
    clock,
    random,
    uuids: makeUuids(clock, random),
    log,
    seal: makeSeal(SEALING_KEY, random),
    notifications: notifications.connect(incarnation),
    waitPermits: makeSemaphore(10),
    logStreamLimit: makeLogStreamLimit({ perOrg: 1, inAll: 1 }),
    openStream: refuseStreams,
    dialChannel: refuseStreams,
    channelLimit: makeChannelLimit({ perSandbox: 1, perOrg: 1 }),
    webhooks: makeTestWebhooks([]),
    settings: {
      stopGraceMs: 500,
      defaultRegistry: 'registry.example',
      maxDiskMib: 65_536,
      placement: 'pack',
      networkDeny: () => [],
    },
  })
  // Half of the server processes send one run in an answer.
  const limit = (random.bytes(1)[0] ?? 0) < 128 ? { answerBytes: 1 } : {}
  const syncDeps = { ...base, ...limit, db: databaseOf(incarnation, 'sync'), tickets: NO_TICKETS }
  const uuids = base.uuids
  let loops: Readonly<Record<LoopName, Loop>> | null = null
  let leading = gates.ended
  const begin = (fence: Leadership['fence'] | null): void => {
    loops = makeLoops((name) => ({ ...base, db: databaseOf(incarnation, name), ...(fence === null ? {} : { fence }) }))
  }
  if (world.hasRivals) {
    const leadDeps = { ...base, db: databaseOf(incarnation, 'lead'), holder: uuids.next() }
    const waiting = (leadership: Leadership): readonly Loop[] => {
      leading = leadership.lost
      begin((tx) => leadership.fence(tx))
      const run = (): Promise<null> =>
        new Promise((resolve) => {
          leading.addEventListener('abort', () => resolve(null), { once: true })
        })
      return [{ name: 'wait until the lead is lost', periodMs: 1_000, topics: [], run }]
    }
    void runLoops({ ...leadDeps, acquireLeadership: makeLeaderElection(leadDeps, 'loops') }, waiting, gates.ended)
  } else begin(null)
  const isLeader = (): boolean => loops !== null && !leading.aborted

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
    if (loop === undefined || !isLeader() || passing.has(loop)) return
    passing.add(loop)
    void pass(loop, leading)
  }
  base.notifications.subscribe('pending', () => beginPass('place'))

  const order = makeSyncOrder(incarnation.name)

  return {
    incarnation,
    deps: base,
    isLeader,
    beginPass,
    async sync(report, signal) {
      const answer = await order.run(report, signal, (either) => holdSync(syncDeps, report, either))
      return JSON.parse(renderAnswer(answer)) as SyncAnswer
    },
  }
}

function makeLoops(depsFor: (name: LoopName) => ControlDeps & FenceDeps): Readonly<Record<LoopName, Loop>> {
  return {
    place: makePlacePendingLoop(depsFor('place')),
    deadlines: makeEnforceDeadlinesLoop(depsFor('deadlines')),
    pools: makeEnforceHardLimitsLoop(depsFor('pools')),
    lost: makeDetectLostWorkersLoop(depsFor('lost')),
    reap: makeReapVolumesLoop(depsFor('reap')),
    retire: makeFinishDeparturesLoop(depsFor('retire')),
    restart: makeRestartEndedLoop(depsFor('restart')),
    roll_up: makeRollUpUsageLoop(depsFor('roll_up')),
    counts: makeAddUpCountsLoop(depsFor('counts')),
  }
}
