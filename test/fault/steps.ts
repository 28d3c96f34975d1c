/** The steps of a schedule: what can happen next, and how likely it is. */
import { WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import type { Ending, Gate, GateKind } from './gates.ts'
import { LOOPS, type LoopName, type Replica } from './replica.ts'
import type { ReplicaHost, World } from './schedule.ts'

/**
 * The kind of fault that dominates a schedule. Many faults of one kind reach deeper states than a few faults of each
 * kind.
 */
const FAULT_FOCUSES = ['gates', 'kills', 'pauses', 'cuts', 'jumps', 'everything', 'nothing'] as const
type FaultFocus = (typeof FAULT_FOCUSES)[number]

/** The weight of each kind of fault among all kinds of steps. A step with twice the weight is twice as likely. */
type FaultRates = Readonly<Record<'kills' | 'pauses' | 'cuts' | 'jumps', number>> & {
  /** The percentage of gates that open with a fault. */
  readonly gatePercent: number
}

function faultRates(focus: FaultFocus): FaultRates {
  const base = focus === 'everything' ? 3 : focus === 'nothing' ? 0 : 1
  const rate = (kind: FaultFocus, most: number): number => (focus === kind ? most : base)
  return {
    kills: rate('kills', 10),
    pauses: rate('pauses', 10),
    cuts: rate('cuts', 8),
    jumps: rate('jumps', 10),
    gatePercent: focus === 'nothing' ? 0 : rate('gates', 35) * (focus === 'gates' ? 1 : 8),
  }
}

const KIND_WEIGHT: Readonly<Record<GateKind, number>> = {
  read: 6,
  write: 6,
  driver: 6,
  request: 5,
  reply: 5,
  hang_up: 2,
  notification: 3,
  runtime_change: 4,
  answer: 5,
  timer: 3,
}
const LOOP_WEIGHT: Readonly<Record<LoopName, number>> = {
  place: 12,
  lost: 2,
  deadlines: 1,
  pools: 1,
  reap: 1,
  retire: 1,
  restart: 2,
  roll_up: 1,
  counts: 1,
}
/** The maximum time that passes in a step: seconds, for the worker's timers, or more than a lease of half a minute. */
const MOST_SMALL_MS = 3_000
const MOST_LARGE_MS = 45_000
const LEAST_STEPS = 15
const MORE_STEPS = 25
/** The maximum number of steps in a schedule. */
export const MAX_STEPS = LEAST_STEPS + MORE_STEPS

/** Runs at most `most` of the steps that the seed chooses. */
export async function runSteps(world: World, most: number): Promise<void> {
  const { seeded } = world
  const focus = seeded.pick(FAULT_FOCUSES)
  const rates = faultRates(focus)
  world.trace(`focus: ${focus}`)
  await runPrelude(world, focus)
  const steps = Math.min(most, LEAST_STEPS + seeded.below(MORE_STEPS))
  for (let step = 0; step < steps; step++) await runStep(world, rates)
}

/** The time in which a new leader observes workers before it records any as lost: a lease and one more check. */
const OBSERVED_MS = WORKER_LEASE_MS + 5_000
/** Errors of the wall clocks of machines without NTP. */
const SKEWS_MS = [-3_600_000, -12_000, 0, 12_000, 3_600_000]

/**
 * Prepares a schedule. In some, the replicas have served for a while, or their clocks differ. Most start with sandboxes
 * that are being created, because without any nothing can go wrong.
 */
async function runPrelude(world: World, focus: FaultFocus): Promise<void> {
  const { seeded, hosts, machines, clients } = world
  if (focus === 'jumps' && seeded.chance(50))
    for (const { wall } of [...hosts, ...machines]) wall.offsetMs = seeded.pick(SKEWS_MS)
  if (focus !== 'nothing' && seeded.chance(40)) await passTime(world, OBSERVED_MS)
  await world.act('the workers start', () => {
    for (const machine of machines) machine.startWorker()
  })
  await drain(world, seeded.below(30))
  for (let creates = seeded.below(4); creates > 0; creates--) {
    const { name, replica } = seeded.pick(hosts)
    await world.act(`a client asks ${name}`, () => world.trace(clients.send('create', replica, world.snapshot())))
  }
  await drain(world, seeded.below(60))
}

async function runStep(world: World, rates: FaultRates): Promise<void> {
  const { seeded, hosts, machines, clients } = world
  const living = hosts.filter(({ replica }) => !replica.incarnation.isDead)
  const serving = living.filter(({ replica }) => !replica.incarnation.isPaused)
  const gates = readyGates(world)
  const incarnations = [
    ...living.map(({ replica }) => replica.incarnation),
    ...machines.flatMap(({ incarnation }) => incarnation ?? []),
  ]
  const paused = incarnations.filter((incarnation) => !incarnation.isDead && incarnation.isPaused)
  const up = incarnations.filter((incarnation) => !incarnation.isDead && !incarnation.isPaused)
  const dead = machines.filter(({ incarnation }) => incarnation === null || incarnation.isDead)
  const down = hosts.filter(({ replica }) => replica.incarnation.isDead)
  const alive = machines.flatMap((machine) => machine.livingRuns().map((run) => [machine, run] as const))
  const cut = machines.filter(({ link }) => link.dropsInbound || link.dropsOutbound)
  const hasFaults = rates.gatePercent > 0
  type Choice = readonly [weight: number, step: () => Promise<void>]
  const when = (holds: boolean, ...choice: Choice): readonly Choice[] => (holds ? [choice] : [])

  const choices: readonly Choice[] = [
    ...when(gates.length > 0, 45, () => openRandomGate(world, gates, rates.gatePercent)),
    ...when(gates.length > 0, 30, async () => void (await drain(world, 3 + seeded.below(14)))),
    ...when(serving.length > 0, 16, () => {
      const op = seeded.weighted([
        [7, 'create'],
        [4, 'start'],
        [6, 'stop'],
        [3, 'delete'],
        [1, 'rename'],
      ] as const)
      const host = seeded.pick(serving)
      return world.act(`a client asks ${host.name}`, () =>
        world.trace(clients.send(op, host.replica, world.snapshot())),
      )
    }),
    ...when(serving.length > 0, 16, () => beginPass(world, seeded.pick(serving).replica)),
    [4, () => passTime(world, 1 + seeded.below(MOST_SMALL_MS))],
    [hasFaults ? 2 : 0, () => passTime(world, seeded.below(MOST_LARGE_MS))],
    ...when(alive.length > 0, 2, () => {
      const [machine, run] = seeded.pick(alive)
      return world.act(`${machine.name}: ${run.run_id} exits`, () => {
        machine.runtime.end(run.run_id, { kind: 'exited', code: seeded.below(2) })
      })
    }),
    ...when(up.length > 0, rates.kills, () => {
      const incarnation = seeded.pick(up)
      count(world, 'kill -9 of a process at rest')
      return world.act(`${incarnation.name} is killed`, () => incarnation.die())
    }),
    ...when(up.length > 0, rates.pauses, () => {
      const incarnation = seeded.pick(up)
      count(world, 'pause of a process')
      return world.act(`${incarnation.name} is paused`, () => incarnation.pause())
    }),
    ...when(paused.length > 0, 6, () => {
      const incarnation = seeded.pick(paused)
      return world.act(`${incarnation.name} resumes`, () => incarnation.resume())
    }),
    ...when(dead.length > 0, 8, () => {
      const machine = seeded.pick(dead)
      return world.act(`${machine.name} starts again`, () => machine.startWorker())
    }),
    ...when(down.length > 0, 8, () => restartReplica(world, seeded.pick(down))),
    [rates.cuts, () => cutLink(world)],
    ...when(cut.length > 0, 5, () => {
      const { link, name } = seeded.pick(cut)
      return world.act(`the link of ${name} is restored`, () => {
        link.dropsInbound = false
        link.dropsOutbound = false
      })
    }),
    [rates.jumps, () => jumpClock(world)],
  ]
  await seeded.weighted(choices)()
}

function count({ counts }: World, what: string): void {
  counts.set(what, (counts.get(what) ?? 0) + 1)
}

/** The gates that may open now. Timers that are not due are left out. */
export function readyGates({ gates }: World): readonly Gate[] {
  return gates.openable().filter(({ dueMs }) => dueMs === null || dueMs <= gates.nowMs)
}

function openRandomGate(world: World, gates: readonly Gate[], faultPercent: number): Promise<void> {
  const { seeded } = world
  const gate = seeded.weighted(gates.map((one) => [KIND_WEIGHT[one.kind], one] as const))
  const faults = gate.endings.filter((ending) => ending !== 'done')
  const ending: Ending = faults.length > 0 && seeded.chance(faultPercent) ? seeded.pick(faults) : 'done'
  return world.openGate(gate, ending)
}

/** Opens up to `most` gates without a fault, the oldest first. Returns the number of opened gates. */
export async function drain(world: World, most: number): Promise<number> {
  for (let opened = 0; opened < most; opened++) {
    const [gate] = readyGates(world)
    if (gate === undefined) return opened
    await world.openGate(gate, 'done')
  }
  return most
}

function beginPass(world: World, replica: Replica): Promise<void> {
  const loop = world.seeded.weighted(LOOPS.map((name) => [LOOP_WEIGHT[name], name] as const))
  return world.act(`${replica.incarnation.name} starts a pass of ${loop}`, () => replica.beginPass(loop))
}

/** Starts a new process of a replica. */
export function restartReplica(world: World, host: ReplicaHost): Promise<void> {
  return world.act(`${host.name} starts again`, () => world.startReplica(host))
}

function cutLink(world: World): Promise<void> {
  const { seeded } = world
  const { link, name } = seeded.pick(world.machines)
  const direction = seeded.pick(['both', 'in', 'out'] as const)
  count(world, `cut of a worker's link, ${direction}`)
  return world.act(`the link of ${name} is cut: ${direction}`, () => {
    link.dropsInbound = direction !== 'out'
    link.dropsOutbound = direction !== 'in'
  })
}

/** NTP steps a clock by seconds, an operator by hours. */
const JUMPS_MS = [-3_600_000, -20_000, -12_000, -2_000, 2_000, 12_000, 20_000, 3_600_000]

function jumpClock(world: World): Promise<void> {
  const { seeded, hosts, machines } = world
  const { wall, name } = seeded.pick([...hosts, ...machines])
  const byMs = seeded.pick(JUMPS_MS)
  count(world, 'jump of a wall clock')
  return world.act(`the wall clock of ${name} jumps by ${String(byMs)}`, () => {
    wall.offsetMs += byMs
  })
}

/** The intervals, while time passes, at which leaders check for lost workers, and at which watchdogs run. */
const LOST_CHECK_EVERY_MS = 4_000
const WATCH_EVERY_MS = 1_000

/**
 * Advances the schedule's time by `ms`. Meanwhile timers open when they are due, watchdogs run, leaders renew their
 * leadership and check for lost workers. All other gates stay shut.
 */
export async function passTime(world: World, ms: number): Promise<void> {
  const { gates, hosts, machines } = world
  const untilMs = gates.nowMs + ms
  world.trace(`time passes: ${String(ms)}`)
  let checkedMs = gates.nowMs
  for (;;) {
    const [next] = gates
      .openable()
      .filter(({ kind, dueMs }) => kind === 'timer' && dueMs !== null && dueMs <= untilMs)
      .sort((a, b) => (a.dueMs ?? 0) - (b.dueMs ?? 0))
    const toMs = Math.max(gates.nowMs, Math.min(next?.dueMs ?? untilMs, gates.nowMs + WATCH_EVERY_MS, untilMs))
    gates.setNow(toMs)
    for (const machine of machines) {
      const ended = machine.runWatchdog()
      if (ended.length > 0) count(world, 'runs ended by a watchdog')
      if (ended.length > 0) await world.act(`the watchdog of ${machine.name} ends its runs`, () => undefined)
    }
    if (next?.dueMs !== undefined && next.dueMs !== null && next.dueMs <= toMs) await world.openGate(next, 'done')
    if (toMs >= checkedMs + LOST_CHECK_EVERY_MS || toMs >= untilMs) {
      checkedMs = toMs
      for (const { replica } of hosts) {
        if (replica.incarnation.isDead || replica.incarnation.isPaused || !replica.isLeader()) continue
        await world.act(`${replica.incarnation.name} looks for lost workers`, () => replica.beginPass('lost'))
      }
    }
    for (const gate of readyGates(world).filter((one) => opensWhileTimePasses(one, toMs === checkedMs)))
      await world.openGate(gate, 'done')
    if (next === undefined && toMs >= untilMs) return
  }
}

/**
 * Whether a gate opens while time passes: a leader's renewal always, the search for lost workers and an election at
 * each check.
 */
function opensWhileTimePasses({ label }: Gate, isCheck: boolean): boolean {
  return (
    label.startsWith('lead: leads.renew') || (isCheck && (label.startsWith('lost: ') || label.startsWith('lead: ')))
  )
}
