import type { Capacity } from '../../src/contract/workers/worker-protocol.ts'
import type { RunId, WorkerId } from '../../src/domain/ids.ts'
import { RENEW_DEADLINE_MS } from '../../src/domain/workers/lease.ts'
import type { Log } from '../../src/lib/log.ts'
import type { Random } from '../../src/lib/random.ts'
import { runAgent } from '../../src/worker/agent/agent.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import { behaviourByImage } from '../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld, type SimulatedWorld } from '../../src/worker/drivers/simulated-world.ts'
import type { RenewDeadline } from '../../src/worker/agent/renew-deadline.ts'
import { nextIncarnation } from '../../src/worker/agent/incarnation.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeNoMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import { makeIncarnation, type Ending, type Gates, type Incarnation } from './gates.ts'
import { NO_VOLUMES, type Link, type Network } from './network.ts'
import { makeSimClock, type WallClock } from './sim-clock.ts'

/** The machine of a worker. Its runs outlive the process of the worker. */
export type Machine = {
  readonly name: string
  readonly id: WorkerId
  readonly runtime: SimulatedWorld
  readonly wall: WallClock
  readonly link: Link
  readonly incarnation: Incarnation | null
  /** Starts the worker's process unless one is alive. */
  startWorker(): void
  /**
   * Runs the machine's watchdog once. From a second after the worker's renew deadline it kills all runs. Returns their
   * ids.
   */
  runWatchdog(): readonly RunId[]
  /** Runs that have not ended. */
  livingRuns(): readonly {
    readonly run_id: RunId
    readonly sandbox_id: string
    readonly vcpus: number
    readonly memory_mib: number
  }[]
}

export type MachineWorld = {
  readonly gates: Gates
  readonly network: Network
  readonly random: Random
  readonly log: Log
  readonly isFenced: boolean
  readonly isWatched: boolean
}

/** The longest time from the worker's renew deadline, at which the worker fences itself, until the watchdog acts. */
const WATCHDOG_MS = 1_000

const BEFORE_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'twice', 'pauses_after']
const AFTER_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_after', 'pauses_after']

/** How runs behave, by image. A run of any other image starts at once and runs until it is stopped. */
const behaviourOf = behaviourByImage([
  { image: /slow/, behaviour: { startDelayMs: 3_000, stopDelayMs: 400 } },
  { image: /stubborn/, behaviour: { ignoresTerm: true } },
  {
    image: /broken/,
    behaviour: { startDelayMs: 500, startFailure: { reason: 'image', message: 'there is no such image' } },
  },
])

/** Creates a machine without runs. */
export function makeMachine(
  world: MachineWorld,
  { name, id, capacity }: { readonly name: string; readonly id: WorkerId; readonly capacity: Capacity },
): Machine {
  const { gates } = world
  const simulated = makeSimulatedWorld()
  const wall: WallClock = { offsetMs: 0 }
  const link: Link = { dropsInbound: false, dropsOutbound: false }
  let incarnation: Incarnation | null = null
  let uuid: string | null = null
  let deadlineMs = 0
  // Every incarnation of the worker, the watchdog and the launcher share this value, as a real worker shares it by a
  // file.
  const renewDeadline: RenewDeadline = {
    nowMs: () => gates.nowMs,
    hasPassed: () => gates.nowMs >= deadlineMs,
    extend(sentAtMs) {
      deadlineMs = Math.max(deadlineMs, sentAtMs + RENEW_DEADLINE_MS)
      return Promise.resolve()
    },
  }
  let incarnations = 0
  let listeners = new Set<() => void>()
  let isChangePending = false
  simulated.onChange.add(() => {
    const own = incarnation
    if (own === null || isChangePending) return
    isChangePending = true
    const listening = listeners
    void gates.pass(own, { kind: 'runtime_change', label: name }, () => {
      isChangePending = false
      for (const call of listening) call()
    })
  })

  const startWorker = (): void => {
    if (incarnation !== null && !incarnation.isDead) return
    const mine = makeIncarnation(`${name}.${String(++incarnations)}`)
    incarnation = mine
    isChangePending = false
    listeners = new Set()
    const clock = makeSimClock(gates, mine, wall)
    uuid = nextIncarnation({ clock, random: world.random }, uuid)
    const view: SimulatedWorld = { ...simulated, onChange: listeners }
    const driver = makeSimulatedDriver({
      clock,
      world: view,
      capacity,
      behaviourOf,
    })
    const ended = runAgent(
      {
        worker_id: id,
        incarnation: uuid,
        driver: withGates(gates, mine, world.isWatched ? withLauncher(driver, renewDeadline) : driver),
        storage: NO_VOLUMES,
        storageSampleMs: 60_000_000,
        openFiles: () => {
          throw new Error('no volumes in a schedule')
        },
        logs: makeNoLogs(),
        metrics: makeNoMetrics(),
        controlPlane: world.network.connect(mine, link),
        renewDeadline,
        clock,
        log: world.log,
        fencesItself: world.isFenced,
      },
      gates.ended,
    )
    ended.catch((error: unknown) => {
      world.log.error({ error }, 'a worker process ended')
    })
  }

  const livingRuns: Machine['livingRuns'] = () =>
    [...simulated.runs.values()]
      .filter(({ observed }) => observed.phase !== 'ended')
      .map(({ desired, observed }) => ({
        run_id: observed.run_id,
        sandbox_id: observed.sandbox_id,
        vcpus: desired.spec.resources.vcpus,
        memory_mib: desired.spec.resources.memory_mib,
      }))

  return {
    name,
    id,
    runtime: simulated,
    wall,
    link,
    get incarnation() {
      return incarnation
    },
    startWorker,
    livingRuns,
    runWatchdog() {
      if (!world.isWatched || gates.nowMs < deadlineMs + WATCHDOG_MS) return []
      const ended = livingRuns().map(({ run_id }) => run_id)
      for (const run of ended) simulated.end(run, { kind: 'signalled', signal: 'SIGKILL' })
      return ended
    },
  }
}

/**
 * A driver with the launcher's check: every start after the renew deadline is refused, even if it was requested
 * earlier.
 */
function withLauncher(driver: Driver, renewDeadline: RenewDeadline): Driver {
  return {
    ...driver,
    start: (run, signal) =>
      renewDeadline.hasPassed()
        ? Promise.reject(new Error('the renew deadline of this worker has passed'))
        : driver.start(run, signal),
  }
}

/**
 * Puts two gates around each action of a driver: one before the action, and one before the worker gets its result.
 * Reads of the machine's state have no gate.
 */
function withGates(gates: Gates, incarnation: Incarnation, driver: Driver): Driver {
  const act = async (label: string, work: () => Promise<void>): Promise<void> => {
    let times = 0
    const begin = (): void => void times++
    await gates.pass(
      incarnation,
      { kind: 'driver', label: `${incarnation.name} ${label}`, endings: BEFORE_ENDINGS },
      begin,
    )
    for (let time = 0; time < times; time++) await work()
    await gates.pass(
      incarnation,
      { kind: 'driver', label: `${incarnation.name} did ${label}`, endings: AFTER_ENDINGS },
      () => null,
    )
  }
  return {
    ...driver,
    start: (run, signal) => act(`start ${run.run_id}`, () => driver.start(run, signal)),
    stop: (run, graceMs, outcome) => act(`stop ${run}`, () => driver.stop(run, graceMs, outcome)),
    remove: (run) => act(`remove ${run}`, () => driver.remove(run)),
    discard: (sandbox) => act(`discard ${sandbox}`, () => driver.discard(sandbox)),
  }
}
