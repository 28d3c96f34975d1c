import { Breach, type World } from './schedule.ts'
import { bootSeat, drain, passTime } from './steps.ts'
import { openBySandbox } from './laws.ts'

/** How much of the schedule's time everything may take to come to rest: two leases, and what a worker's start takes. */
const LIMIT_MS = 120_000
/** The most gates between two looks; more of them than this never come to an end. */
const MOST_GATES = 2_000
const LOOPS_OF_A_ROUND = ['place', 'lost', 'deadlines', 'pools', 'reap', 'retire', 'roll_up'] as const

/** Ends all faults, lets everything that waits go on in its order, and sees that all comes to rest as it is wanted. */
export async function converge(world: World): Promise<void> {
  const { gates, seats, machines } = world
  world.note('no faults from here on')
  for (const { replica } of seats)
    if (replica.life.isPaused) await world.act(`${replica.life.name} goes on`, () => replica.life.resume())
  for (const machine of machines) {
    machine.link.hearsNothing = false
    machine.link.saysNothing = false
    const { life } = machine
    if (life?.isPaused === true) await world.act(`${life.name} goes on`, () => life.resume())
    if (life === null || life.isDead) await world.act(`${machine.name} begins again`, () => machine.boot())
  }
  for (const seat of seats) if (seat.replica.life.isDead) await bootSeat(world, seat)
  const untilMs = gates.nowMs + LIMIT_MS
  for (let round = 0; ; round++) {
    await calm(world)
    const rest = whatIsLeft(world)
    if (rest === null) return asAsked(world)
    if (gates.nowMs >= untilMs) throw new Breach(`all comes to rest as it is wanted: ${rest}`)
    if (round > 0) await passTime(world, round < 4 ? 1_000 : 5_000)
    const seat = seats.find(({ replica }) => replica.leads())
    for (const loop of LOOPS_OF_A_ROUND)
      if (seat !== undefined && (loop === 'place' || loop === 'lost' || round === 0))
        await world.act(`${seat.name} begins a pass of ${loop}`, () => seat.replica.beginPass(loop))
  }
}

async function calm(world: World): Promise<void> {
  if ((await drain(world, MOST_GATES)) === MOST_GATES)
    throw new Breach('all comes to rest as it is wanted: it goes on for ever')
}

/** What keeps the world from being as the database wants it; null when nothing does. */
function whatIsLeft({ seen, machines }: World): string | null {
  const now = seen()
  const open = openBySandbox(now)
  const held = new Map(
    machines.flatMap((machine) =>
      [...machine.world.runs.values()].map((run) => [run.observed.run_id, { machine, run }] as const),
    ),
  )
  for (const { id, status, home_worker_id } of now.sandboxes.values()) {
    const run = open.get(id)?.[0]
    if (run === undefined) continue
    if (status === 'stopping') return `${id} is stopping`
    if (run.worker_id === null) {
      const homes = machines.filter((machine) => home_worker_id === null || machine.id === home_worker_id)
      const hasRoom = homes.some(
        (machine) =>
          [...now.runs.values()].filter((other) => other.worker_id === machine.id && other.ended_at === null).length <
          2,
      )
      if (hasRoom) return `${id} waits though there is room`
      continue
    }
    const there = held.get(run.id)
    if (status === 'starting') return `${id} is starting`
    if (there === undefined || there.machine.id !== run.worker_id) return `${id} runs nowhere`
    if (there.run.observed.phase !== 'running') return `${id} runs, and its worker has it ${there.run.observed.phase}`
    held.delete(run.id)
  }
  for (const [id, { machine }] of held) return `${machine.name} still holds ${id}`
  for (const machine of machines)
    for (const id of machine.world.stored) {
      const sandbox = now.sandboxes.get(id)
      if (sandbox !== undefined && sandbox.visible_until !== null && !open.has(id))
        return `${machine.name} still stores ${id}`
    }
  return null
}

/** What clients were told last must be so, unless something else that is known ended it. */
function asAsked({ clients, seen }: World): void {
  const now = seen()
  for (const last of clients.asked) {
    const id = last.made ?? last.sandbox
    if (id === null || last.outcome !== 'acknowledged') continue
    const others = clients.asked.filter(
      (one) => one !== last && (one.made ?? one.sandbox) === id && one.kind !== 'rename',
    )
    const isLast = others.every((one) => one.until < last.at || (one.outcome === 'refused' && one.until < Infinity))
    const sandbox = now.sandboxes.get(id)
    if (!isLast || sandbox === undefined) continue
    const runs = [...now.runs.values()].filter((run) => run.sandbox_id === id)
    const open = runs.some((run) => run.ended_at === null)
    if ((last.kind === 'stop' || last.kind === 'delete') && open)
      throw new Breach(`what was asked for last comes true: ${last.kind} of ${id}, which is ${sandbox.status}`)
    const isStart = last.kind === 'start' || (last.kind === 'create' && last.starts)
    if (!isStart) continue
    const ended = runs.at(-1)
    if (ended === undefined) throw new Breach(`what was asked for last comes true: ${last.kind} of ${id} opened no run`)
    const isExcused = ended.outcome !== 'stopped' || ENDED_BY_US.has(ended.stop_cause ?? '')
    if (!open && !isExcused)
      throw new Breach(
        `what was asked for last comes true: ${id} was started and stopped for ${ended.stop_cause ?? 'nothing'}`,
      )
  }
}

/** What may end a run that nobody asked to stop. */
const ENDED_BY_US = new Set(['max_duration', 'idle_timeout'])
