import type { Capacity } from '../../src/contract/workers/worker-protocol.ts'
import type { RunId, WorkerId } from '../../src/domain/ids.ts'
import { SELF_FENCE_MS } from '../../src/domain/workers/lease.ts'
import type { Log } from '../../src/lib/log.ts'
import type { Random } from '../../src/lib/random.ts'
import { runAgent } from '../../src/worker/agent/agent.ts'
import type { Driver } from '../../src/worker/drivers/driver.ts'
import {
  behaviourByImage,
  makeSimulatedDriver,
  makeSimulatedWorld,
  type SimulatedWorld,
} from '../../src/worker/drivers/simulated.ts'
import type { Lease } from '../../src/worker/agent/lease.ts'
import { nextIncarnation } from '../../src/worker/agent/incarnation.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { makeLife, type Ending, type Gates, type Life } from './gates.ts'
import { NO_VOLUMES, type Link, type Network } from './network.ts'
import { makeSimClock, type WallClock } from './sim-clock.ts'

/** A worker's machine: what runs on it outlives the process of the worker. */
export type Machine = {
  readonly name: string
  readonly id: WorkerId
  readonly world: SimulatedWorld
  readonly wall: WallClock
  readonly link: Link
  readonly life: Life | null
  /** Starts the worker's process unless it lives. */
  boot(): void
  /** The watchdog, another process of this machine, ends all that runs once no sync was answered for too long. */
  watch(): readonly RunId[]
  /** Runs that are not over. */
  alive(): readonly {
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

/** How long after the worker's own fence the watchdog acts at the latest. */
const WATCHDOG_MS = 1_000

const BEFORE_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'twice', 'pauses_after']
const AFTER_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_after', 'pauses_after']

/** How runs of an image go; any other image starts at once and runs until it is stopped. */
const behaviourOf = behaviourByImage([
  { image: /slow/, behaviour: { startDelayMs: 3_000, stopDelayMs: 400 } },
  { image: /stubborn/, behaviour: { ignoresTerm: true } },
  {
    image: /broken/,
    behaviour: { startDelayMs: 500, startFailure: { reason: 'image', message: 'there is no such image' } },
  },
])

/** Makes a machine on which nothing runs yet. */
export function makeMachine(
  world: MachineWorld,
  { name, id, capacity }: { readonly name: string; readonly id: WorkerId; readonly capacity: Capacity },
): Machine {
  const { gates } = world
  const held = makeSimulatedWorld()
  const wall: WallClock = { offsetMs: 0 }
  const link: Link = { hearsNothing: false, saysNothing: false }
  let life: Life | null = null
  let uuid: string | null = null
  let overAtMs = 0
  // What the worker keeps in a file: a later life has what is left of it, and the watchdog and the launcher read it.
  const lease: Lease = {
    nowMs: () => gates.nowMs,
    isOver: () => gates.nowMs >= overAtMs,
    renew(sentAtMs) {
      overAtMs = Math.max(overAtMs, sentAtMs + SELF_FENCE_MS)
      return Promise.resolve()
    },
  }
  let lives = 0
  let listeners = new Set<() => void>()
  let isNewsWaiting = false
  held.onChange.add(() => {
    const mine = life
    if (mine === null || isNewsWaiting) return
    isNewsWaiting = true
    const listening = listeners
    void gates.pass(mine, { kind: 'news', label: name }, () => {
      isNewsWaiting = false
      for (const call of listening) call()
    })
  })

  const boot = (): void => {
    if (life !== null && !life.isDead) return
    const mine = makeLife(`${name}.${String(++lives)}`)
    life = mine
    isNewsWaiting = false
    listeners = new Set()
    const clock = makeSimClock(gates, mine, wall)
    uuid = nextIncarnation({ clock, random: world.random }, uuid)
    const view: SimulatedWorld = { ...held, onChange: listeners }
    const driver = makeSimulatedDriver({
      clock,
      world: view,
      capacity,
      behaviourOf,
    })
    const ended = runAgent(
      {
        worker_id: id,
        life: uuid,
        driver: gated(gates, mine, world.isWatched ? launching(driver, lease) : driver),
        storage: NO_VOLUMES,
        storageSampleMs: 60_000_000,
        filesOf: () => {
          throw new Error('no volumes in a schedule')
        },
        logs: makeNoLogs(),
        controlPlane: world.network.connect(mine, link),
        lease,
        clock,
        log: world.log,
        fencesItself: world.isFenced,
      },
      new AbortController().signal,
    )
    ended.catch((error: unknown) => {
      world.log.error({ error }, 'a worker ended')
    })
  }

  const alive: Machine['alive'] = () =>
    [...held.runs.values()]
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
    world: held,
    wall,
    link,
    get life() {
      return life
    },
    boot,
    alive,
    watch() {
      if (!world.isWatched || gates.nowMs < overAtMs + WATCHDOG_MS) return []
      const ended = alive().map(({ run_id }) => run_id)
      for (const run of ended) held.end(run, { kind: 'signalled', signal: 'SIGKILL' })
      return ended
    },
  }
}

/** The launcher, a process of its own, starts nothing once the lease is over: not even what was asked of it before. */
function launching(driver: Driver, lease: Lease): Driver {
  return {
    ...driver,
    start: (run, signal) =>
      lease.isOver() ? Promise.reject(new Error('the lease of this worker is over')) : driver.start(run, signal),
  }
}

/**
 * The driver's actions as gates: one before it is done, one between its end and the worker's hearing of it. What the
 * driver sees it reads from the machine, whenever it is asked.
 */
function gated(gates: Gates, life: Life, driver: Driver): Driver {
  const act = async (label: string, work: () => Promise<void>): Promise<void> => {
    let times = 0
    const begin = (): void => void times++
    await gates.pass(life, { kind: 'driver', label: `${life.name} ${label}`, endings: BEFORE_ENDINGS }, begin)
    for (let time = 0; time < times; time++) await work()
    await gates.pass(life, { kind: 'driver', label: `${life.name} did ${label}`, endings: AFTER_ENDINGS }, () => null)
  }
  return {
    ...driver,
    start: (run, signal) => act(`start ${run.run_id}`, () => driver.start(run, signal)),
    stop: (run, graceMs) => act(`stop ${run}`, () => driver.stop(run, graceMs)),
    remove: (run) => act(`remove ${run}`, () => driver.remove(run)),
    discard: (sandbox) => act(`discard ${sandbox}`, () => driver.discard(sandbox)),
  }
}
