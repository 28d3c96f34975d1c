/** The steps of a schedule: what can happen next, and how likely. */
import { WORKER_LEASE_MS } from '../../src/domain/workers/lease.ts'
import type { Ending, Gate, GateKind } from './gates.ts'
import { LOOPS, type LoopName, type Replica } from './replica.ts'
import type { Seat, World } from './schedule.ts'

/** What goes wrong above all in a schedule: one of many kinds of fault alone comes further than a little of each. */
const TROUBLES = ['gates', 'kills', 'pauses', 'cuts', 'jumps', 'everything', 'nothing'] as const
type Trouble = (typeof TROUBLES)[number]

/** How often each kind of fault comes, as weights beside those of the other steps. */
type Rates = Readonly<Record<'kills' | 'pauses' | 'cuts' | 'jumps', number>> & {
  /** In how many of a hundred openings of a gate something goes wrong. */
  readonly gatePercent: number
}

function ratesOf(trouble: Trouble): Rates {
  const base = trouble === 'everything' ? 3 : trouble === 'nothing' ? 0 : 1
  const rate = (kind: Trouble, most: number): number => (trouble === kind ? most : base)
  return {
    kills: rate('kills', 10),
    pauses: rate('pauses', 10),
    cuts: rate('cuts', 8),
    jumps: rate('jumps', 10),
    gatePercent: trouble === 'nothing' ? 0 : rate('gates', 35) * (trouble === 'gates' ? 1 : 8),
  }
}

const KIND_WEIGHT: Readonly<Record<GateKind, number>> = {
  read: 6,
  write: 6,
  driver: 6,
  request: 5,
  reply: 5,
  hang_up: 2,
  wake: 3,
  news: 4,
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
  roll_up: 1,
}
/** The worker's own times are seconds, a lease is half a minute: between them a schedule lets pass either. */
const MOST_SMALL_MS = 3_000
const MOST_LARGE_MS = 45_000
const LEAST_STEPS = 15
const MORE_STEPS = 25
/** As many as any schedule has. */
export const ALL_STEPS = LEAST_STEPS + MORE_STEPS

/** Plays the steps of a seed. */
export async function playSteps(world: World, most: number): Promise<void> {
  const { seeded } = world
  const trouble = seeded.pick(TROUBLES)
  const rates = ratesOf(trouble)
  world.note(`trouble: ${trouble}`)
  await playPrelude(world, trouble)
  const steps = Math.min(most, LEAST_STEPS + seeded.below(MORE_STEPS))
  for (let step = 0; step < steps; step++) await playStep(world, rates)
}

/** How long a leader listens before it calls anybody lost: a lease, and a look more. */
const LISTENED_MS = WORKER_LEASE_MS + 5_000
/** How wrong the clocks of machines are that nobody sets. */
const SKEWS_MS = [-3_600_000, -12_000, 0, 12_000, 3_600_000]

/**
 * Some begin with replicas that have served for a while, or whose clocks differ; most with sandboxes that are under way:
 * nothing can go wrong with none.
 */
async function playPrelude(world: World, trouble: Trouble): Promise<void> {
  const { seeded, seats, machines, clients } = world
  if (trouble === 'jumps' && seeded.chance(50))
    for (const { wall } of [...seats, ...machines]) wall.offsetMs = seeded.pick(SKEWS_MS)
  if (trouble !== 'nothing' && seeded.chance(40)) await passTime(world, LISTENED_MS)
  await world.act('the workers begin', () => {
    for (const machine of machines) machine.boot()
  })
  await drain(world, seeded.below(30))
  for (let creates = seeded.below(4); creates > 0; creates--) {
    const { name, replica } = seeded.pick(seats)
    await world.act(`a client asks ${name}`, () => world.note(clients.ask('create', replica, world.seen())))
  }
  await drain(world, seeded.below(60))
}

async function playStep(world: World, rates: Rates): Promise<void> {
  const { seeded, seats, machines, clients } = world
  const living = seats.filter(({ replica }) => !replica.life.isDead)
  const serving = living.filter(({ replica }) => !replica.life.isPaused)
  const gates = readyGates(world)
  const lives = [...living.map(({ replica }) => replica.life), ...machines.flatMap(({ life }) => life ?? [])]
  const paused = lives.filter((life) => !life.isDead && life.isPaused)
  const up = lives.filter((life) => !life.isDead && !life.isPaused)
  const dead = machines.filter(({ life }) => life === null || life.isDead)
  const down = seats.filter(({ replica }) => replica.life.isDead)
  const alive = machines.flatMap((machine) => machine.alive().map((run) => [machine, run] as const))
  const cut = machines.filter(({ link }) => link.hearsNothing || link.saysNothing)
  const isTroubled = rates.gatePercent > 0
  type Choice = readonly [weight: number, step: () => Promise<void>]
  const when = (holds: boolean, ...choice: Choice): readonly Choice[] => (holds ? [choice] : [])

  const choices: readonly Choice[] = [
    ...when(gates.length > 0, 45, () => openOne(world, gates, rates.gatePercent)),
    ...when(gates.length > 0, 30, async () => void (await drain(world, 3 + seeded.below(14)))),
    ...when(serving.length > 0, 16, () => {
      const op = seeded.weighted([
        [7, 'create'],
        [4, 'start'],
        [6, 'stop'],
        [3, 'delete'],
        [1, 'rename'],
      ] as const)
      const seat = seeded.pick(serving)
      return world.act(`a client asks ${seat.name}`, () => world.note(clients.ask(op, seat.replica, world.seen())))
    }),
    ...when(serving.length > 0, 16, () => beginPass(world, seeded.pick(serving).replica)),
    [4, () => passTime(world, 1 + seeded.below(MOST_SMALL_MS))],
    [isTroubled ? 2 : 0, () => passTime(world, seeded.below(MOST_LARGE_MS))],
    ...when(alive.length > 0, 2, () => {
      const [machine, run] = seeded.pick(alive)
      return world.act(`${machine.name}: ${run.run_id} exits`, () => {
        machine.world.end(run.run_id, { kind: 'exited', code: seeded.below(2) })
      })
    }),
    ...when(up.length > 0, rates.kills, () => {
      const life = seeded.pick(up)
      count(world, 'kill -9 of a process at rest')
      return world.act(`${life.name} is killed`, () => life.die())
    }),
    ...when(up.length > 0, rates.pauses, () => {
      const life = seeded.pick(up)
      count(world, 'pause of a process')
      return world.act(`${life.name} is paused`, () => life.pause())
    }),
    ...when(paused.length > 0, 6, () => {
      const life = seeded.pick(paused)
      return world.act(`${life.name} goes on`, () => life.resume())
    }),
    ...when(dead.length > 0, 8, () => {
      const machine = seeded.pick(dead)
      return world.act(`${machine.name} begins again`, () => machine.boot())
    }),
    ...when(down.length > 0, 8, () => bootSeat(world, seeded.pick(down))),
    [rates.cuts, () => cutLink(world)],
    ...when(cut.length > 0, 5, () => {
      const { link, name } = seeded.pick(cut)
      return world.act(`the link of ${name} is whole`, () => {
        link.hearsNothing = false
        link.saysNothing = false
      })
    }),
    [rates.jumps, () => jump(world)],
  ]
  await seeded.weighted(choices)()
}

function count({ counts }: World, what: string): void {
  counts.set(what, (counts.get(what) ?? 0) + 1)
}

/** The gates that may open now. */
export function readyGates({ gates }: World): readonly Gate[] {
  return gates.open().filter(({ dueMs }) => dueMs === null || dueMs <= gates.nowMs)
}

function openOne(world: World, gates: readonly Gate[], faultPercent: number): Promise<void> {
  const { seeded } = world
  const gate = seeded.weighted(gates.map((one) => [KIND_WEIGHT[one.kind], one] as const))
  const faults = gate.endings.filter((ending) => ending !== 'done')
  const ending: Ending = faults.length > 0 && seeded.chance(faultPercent) ? seeded.pick(faults) : 'done'
  return world.open(gate, ending)
}

/** Opens the oldest gates without a fault. */
export async function drain(world: World, most: number): Promise<number> {
  for (let opened = 0; opened < most; opened++) {
    const [gate] = readyGates(world)
    if (gate === undefined) return opened
    await world.open(gate, 'done')
  }
  return most
}

function beginPass(world: World, replica: Replica): Promise<void> {
  const loop = world.seeded.weighted(LOOPS.map((name) => [LOOP_WEIGHT[name], name] as const))
  return world.act(`${replica.life.name} begins a pass of ${loop}`, () => replica.beginPass(loop))
}

/** Starts a replica's next process. */
export function bootSeat(world: World, seat: Seat): Promise<void> {
  return world.act(`${seat.name} begins again`, () => world.bootSeat(seat))
}

function cutLink(world: World): Promise<void> {
  const { seeded } = world
  const { link, name } = seeded.pick(world.machines)
  const direction = seeded.pick(['both', 'in', 'out'] as const)
  count(world, `cut of a worker's link, ${direction}`)
  return world.act(`the link of ${name} is cut: ${direction}`, () => {
    link.hearsNothing = direction !== 'out'
    link.saysNothing = direction !== 'in'
  })
}

/** NTP steps a clock by seconds, an operator by hours. */
const JUMPS_MS = [-3_600_000, -20_000, -12_000, -2_000, 2_000, 12_000, 20_000, 3_600_000]

function jump(world: World): Promise<void> {
  const { seeded, seats, machines } = world
  const { wall, name } = seeded.pick([...seats, ...machines])
  const byMs = seeded.pick(JUMPS_MS)
  count(world, 'jump of a wall clock')
  return world.act(`the wall clock of ${name} jumps by ${String(byMs)}`, () => {
    wall.offsetMs += byMs
  })
}

/** How often the loop that looks for lost workers begins a pass while time goes on, and who wants to lead looks. */
const LOOK_EVERY_MS = 4_000
const WATCH_EVERY_MS = 1_000

/** Lets time go on: timers open when they are due, processes that run look for lost workers, nothing else moves. */
export async function passTime(world: World, ms: number): Promise<void> {
  const { gates, seats, machines } = world
  const untilMs = gates.nowMs + ms
  world.note(`time goes on by ${String(ms)}`)
  let lookMs = gates.nowMs
  for (;;) {
    const [next] = gates
      .open()
      .filter(({ kind, dueMs }) => kind === 'timer' && dueMs !== null && dueMs <= untilMs)
      .sort((a, b) => (a.dueMs ?? 0) - (b.dueMs ?? 0))
    const toMs = Math.max(gates.nowMs, Math.min(next?.dueMs ?? untilMs, gates.nowMs + WATCH_EVERY_MS, untilMs))
    gates.setNow(toMs)
    for (const machine of machines) {
      const ended = machine.watch()
      if (ended.length > 0) count(world, 'runs ended by a watchdog')
      if (ended.length > 0) await world.act(`the watchdog of ${machine.name} ends what runs`, () => undefined)
    }
    if (next?.dueMs !== undefined && next.dueMs !== null && next.dueMs <= toMs) await world.open(next, 'done')
    if (toMs >= lookMs + LOOK_EVERY_MS || toMs >= untilMs) {
      lookMs = toMs
      for (const { replica } of seats) {
        if (replica.life.isDead || replica.life.isPaused || !replica.leads()) continue
        await world.act(`${replica.life.name} looks for lost workers`, () => replica.beginPass('lost'))
      }
    }
    for (const gate of readyGates(world).filter((one) => goesOn(one, toMs === lookMs))) await world.open(gate, 'done')
    if (next === undefined && toMs >= untilMs) return
  }
}

/** What goes on while time does: leaders beat, and at a look they look for lost workers and others for the lead. */
function goesOn({ label }: Gate, isLook: boolean): boolean {
  return label.startsWith('lead: leads.beat') || (isLook && (label.startsWith('lost: ') || label.startsWith('lead: ')))
}
