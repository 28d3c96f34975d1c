import { Violation, type World } from './schedule.ts'
import { restartReplica, drain, passTime } from './steps.ts'
import { openBySandbox } from './invariants.ts'

/** How long the world may take to converge, in the schedule's time: two leases and the start of a worker fit in. */
const LIMIT_MS = 120_000
/** The maximum number of gates opened between two checks. A world that needs more is in an endless loop. */
const MAX_GATES = 2_000
const CONVERGES = 'without faults everything converges'
const LAST_REQUEST_HOLDS = 'the last acknowledged request has its effect'
const LOOPS_PER_ROUND = ['place', 'lost', 'deadlines', 'pools', 'reap', 'retire', 'roll_up'] as const

/**
 * Ends all faults, opens gates in order, and throws a `Violation` unless the world converges. Then everything matches
 * the database and the clients' last requests, and no work is left.
 */
export async function converge(world: World): Promise<void> {
  const { gates, hosts, machines } = world
  world.trace('no faults from now on')
  for (const { replica } of hosts)
    if (replica.incarnation.isPaused)
      await world.act(`${replica.incarnation.name} resumes`, () => replica.incarnation.resume())
  for (const machine of machines) {
    machine.link.dropsInbound = false
    machine.link.dropsOutbound = false
    const { incarnation } = machine
    if (incarnation?.isPaused === true) await world.act(`${incarnation.name} resumes`, () => incarnation.resume())
    if (incarnation === null || incarnation.isDead)
      await world.act(`${machine.name} starts again`, () => machine.startWorker())
  }
  for (const host of hosts) if (host.replica.incarnation.isDead) await restartReplica(world, host)
  const untilMs = gates.nowMs + LIMIT_MS
  for (let round = 0; ; round++) {
    await drainAll(world)
    const unfinished = unfinishedWork(world)
    if (unfinished === null) return checkClientRequests(world)
    if (gates.nowMs >= untilMs) throw new Violation(`${CONVERGES}: ${unfinished}`)
    if (round > 0) await passTime(world, round < 4 ? 1_000 : 5_000)
    const host = hosts.find(({ replica }) => replica.isLeader())
    for (const loop of LOOPS_PER_ROUND)
      if (host !== undefined && (loop === 'place' || loop === 'lost' || round === 0))
        await world.act(`${host.name} starts a pass of ${loop}`, () => host.replica.beginPass(loop))
  }
}

async function drainAll(world: World): Promise<void> {
  if ((await drain(world, MAX_GATES)) === MAX_GATES) throw new Violation(`${CONVERGES}: it never comes to rest`)
}

/** Describes one difference between machines and database, or one unfinished change. Null if there is none. */
function unfinishedWork({ snapshot, machines }: World): string | null {
  const now = snapshot()
  const open = openBySandbox(now)
  const held = new Map(
    machines.flatMap((machine) =>
      [...machine.runtime.runs.values()].map((run) => [run.observed.run_id, { machine, run }] as const),
    ),
  )
  for (const { id, status, home_worker_id } of now.sandboxes.values()) {
    const run = open.get(id)?.[0]
    if (run === undefined) continue
    if (status === 'stopping') return `${id} is stopping`
    if (run.worker_id === null) {
      const homes = machines.filter((machine) => home_worker_id === null || machine.id === home_worker_id)
      const hasCapacity = homes.some(
        (machine) =>
          [...now.runs.values()].filter((other) => other.worker_id === machine.id && other.ended_at === null).length <
          2,
      )
      if (hasCapacity) return `${id} waits although a worker has capacity`
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
    for (const id of machine.runtime.stored) {
      const sandbox = now.sandboxes.get(id)
      if (sandbox !== undefined && sandbox.visible_until !== null && !open.has(id))
        return `${machine.name} still stores ${id}`
    }
  return null
}

/**
 * Throws a `Violation` unless the last acknowledged request for each sandbox has its effect. A started run may also
 * have ended by a cause other than a request.
 */
function checkClientRequests({ clients, snapshot }: World): void {
  const now = snapshot()
  for (const last of clients.requests) {
    const id = last.createdId ?? last.sandbox
    if (id === null || last.outcome !== 'acknowledged') continue
    const others = clients.requests.filter(
      (one) => one !== last && (one.createdId ?? one.sandbox) === id && one.kind !== 'rename',
    )
    const isLast = others.every(
      (one) => one.answeredAt < last.sentAt || (one.outcome === 'refused' && one.answeredAt < Infinity),
    )
    const sandbox = now.sandboxes.get(id)
    if (!isLast || sandbox === undefined) continue
    const runs = [...now.runs.values()].filter((run) => run.sandbox_id === id)
    const open = runs.some((run) => run.ended_at === null)
    if ((last.kind === 'stop' || last.kind === 'delete') && open)
      throw new Violation(`${LAST_REQUEST_HOLDS}: ${last.kind} of ${id}, which is ${sandbox.status}`)
    const isStart = last.kind === 'start' || (last.kind === 'create' && last.starts)
    if (!isStart) continue
    const ended = runs.at(-1)
    if (ended === undefined) throw new Violation(`${LAST_REQUEST_HOLDS}: ${last.kind} of ${id} opened no run`)
    const isExcused = ended.outcome !== 'stopped' || STOPPED_BY_LIMIT.has(ended.stop_cause ?? '')
    if (!open && !isExcused)
      throw new Violation(`${LAST_REQUEST_HOLDS}: ${id} was started and stopped for ${ended.stop_cause ?? 'no cause'}`)
  }
}

/** Causes that stop a run without a request. */
const STOPPED_BY_LIMIT = new Set(['max_duration', 'idle_timeout'])
