/** What must hold after every step, whatever the schedule did. */
import type { SandboxId } from '../../src/domain/ids.ts'
import {
  isActive,
  nextStatus,
  SANDBOX_STATUSES,
  TRANSITION_EVENTS,
  type SandboxStatus,
} from '../../src/domain/sandboxes/lifecycle.ts'
import type { Acks } from './acks.ts'
import type { Machine } from './machine.ts'
import type { RunSeen, SandboxSeen, Snapshot } from './snapshot.ts'

/** What a law is given: the database before and after a step, and the machines after it. */
export type Sight = {
  readonly before: Snapshot
  readonly after: Snapshot
  readonly machines: readonly Machine[]
  readonly capacityOf: ReadonlyMap<string, { readonly vcpus: number; readonly memory_mib: number }>
  readonly limits: { readonly sandboxes: number; readonly running: number } | null
  readonly acks: Acks
}

/** Answers what breaks the law, or null. */
export type Law = { readonly sentence: string; readonly breach: (sight: Sight) => string | null }

/** Laws about the database: they can break only by a write. */
export const ROW_LAWS: readonly Law[] = [
  { sentence: 'a status moves along the lifecycle table alone', breach: movesByTheTable },
  { sentence: 'a sandbox is active if and only if it has an open run, and it has one at most', breach: activeHasRun },
  { sentence: 'each transition leaves one audit event, and nothing else leaves one', breach: oneEventEach },
  { sentence: 'metered intervals of a sandbox never overlap, and end with their run', breach: metersApart },
  { sentence: 'what ended stays as it ended', breach: endsStay },
  { sentence: 'no worker is given more than it has', breach: withinCapacity },
  { sentence: 'no organization has more than its limits allow', breach: withinLimits },
  { sentence: 'what was acknowledged is never lost', breach: acknowledgedStays },
]

/** Laws about machines and the database: they can break by any step. */
export const WORLD_LAWS: readonly Law[] = [
  { sentence: 'a sandbox has one living run at most, on all machines together', breach: oneLife },
  {
    sentence: 'what lives on a machine is an open run of that machine: it was not called lost or over',
    breach: livesAreOpen,
  },
  { sentence: 'no machine holds more than it has room for', breach: machineWithinCapacity },
]

/** The statuses that a status can lead to, in one step. */
const FOLLOWERS: ReadonlyMap<SandboxStatus, ReadonlySet<SandboxStatus>> = new Map(
  SANDBOX_STATUSES.map((status) => [
    status,
    new Set(
      TRANSITION_EVENTS.flatMap((event) =>
        [true, false].flatMap((isPlaced) => nextStatus({ status, isPlaced }, event) ?? []),
      ),
    ),
  ]),
)

function movesByTheTable({ before, after }: Sight): string | null {
  for (const [id, now] of after.sandboxes) {
    const then = before.sandboxes.get(id)
    const isNew = then === undefined
    if (isNew && now.status !== 'created' && now.status !== 'starting') return `${id} began as ${now.status}`
    if (isNew || then.status === now.status) continue
    if (FOLLOWERS.get(then.status)?.has(now.status) !== true) return `${id} went from ${then.status} to ${now.status}`
  }
  return null
}

function activeHasRun({ after }: Sight): string | null {
  const open = openBySandbox(after)
  for (const { id, status } of after.sandboxes.values()) {
    const many = open.get(id)?.length ?? 0
    if (many !== (isActive(status) ? 1 : 0)) return `${id} is ${status} and has ${String(many)} open runs`
  }
  return null
}

const TRANSITION_TYPES = ['starting', 'placed', 'waiting', 'running', 'stopping', 'stopped', 'failed']

function oneEventEach({ before, after }: Sight): string | null {
  for (const [id, now] of after.sandboxes) {
    const then = before.sandboxes.get(id)
    const told = TRANSITION_TYPES.reduce((sum, type) => {
      const key = `${id} sandbox_${type}`
      return sum + (after.events.get(key) ?? 0) - (before.events.get(key) ?? 0)
    }, 0)
    const hasMoved =
      then === undefined ? now.status === 'starting' : standingOf(then, before) !== standingOf(now, after)
    if (told !== (hasMoved ? 1 : 0))
      return `${id} ${hasMoved ? 'moved' : 'stood still'} and left ${String(told)} events`
    const created = after.events.get(`${id} sandbox_created`) ?? 0
    if (created !== 1) return `${id} was created with ${String(created)} events`
    const deleted = after.events.get(`${id} sandbox_deleted`) ?? 0
    const isGone = now.visible_until !== null
    if (deleted > 1 || (deleted === 1 && !isGone) || (deleted === 0 && isGone && !now.ephemeral))
      return `${id} was deleted with ${String(deleted)} events`
  }
  return null
}

function standingOf(sandbox: SandboxSeen, from: Snapshot): string {
  const run = openBySandbox(from).get(sandbox.id)?.[0]
  return `${sandbox.status} ${sandbox.status_reason ?? ''} ${run?.id ?? ''} ${run?.worker_id ?? ''}`
}

function metersApart({ after }: Sight): string | null {
  const untilOf = new Map<SandboxId, number>()
  // Where a clock stepped back, a run may end in the instant in which it and the next one began.
  const byTime = [...after.runs.values()].sort(
    (a, b) => (a.started_at ?? 0) - (b.started_at ?? 0) || (a.ended_at ?? Infinity) - (b.ended_at ?? Infinity),
  )
  for (const run of byTime) {
    if (run.started_at === null) continue
    const until = untilOf.get(run.sandbox_id)
    if (until !== undefined && run.started_at < until)
      return `run ${run.id} of ${run.sandbox_id} is metered from ${String(run.started_at)}, an earlier one until ${String(until)}`
    untilOf.set(run.sandbox_id, run.ended_at ?? Number.POSITIVE_INFINITY)
  }
  return null
}

function endsStay({ before, after }: Sight): string | null {
  for (const [id, then] of before.runs) {
    const now = after.runs.get(id)
    if (now === undefined) return `run ${id} is gone`
    if (then.ended_at !== null && now.ended_at !== then.ended_at) return `run ${id} ended again`
    if (then.worker_id !== null && now.worker_id !== then.worker_id) return `run ${id} went to another worker`
    if (then.started_at !== null && now.started_at !== then.started_at) return `run ${id} began again`
    if (then.stop_requested_at !== null && now.stop_requested_at === null) return `run ${id} is wanted again`
  }
  for (const [id, then] of before.sandboxes)
    if (then.visible_until !== null && after.sandboxes.get(id)?.visible_until === null) return `${id} came back`
  return null
}

function withinCapacity({ after, capacityOf }: Sight): string | null {
  for (const [worker, capacity] of capacityOf) {
    const runs = [...after.runs.values()].filter((run) => run.worker_id === worker && run.ended_at === null)
    const breach = beyond(capacity, runs)
    if (breach !== null) return `worker ${worker} was given ${breach}`
  }
  return null
}

function machineWithinCapacity({ machines, capacityOf }: Sight): string | null {
  for (const machine of machines) {
    const capacity = capacityOf.get(machine.id)
    const breach = capacity === undefined ? null : beyond(capacity, machine.alive())
    if (breach !== null) return `${machine.name} holds ${breach}`
  }
  return null
}

type Size = { readonly vcpus: number; readonly memory_mib: number }

function beyond(capacity: Size, sizes: readonly Size[]): string | null {
  const vcpus = sizes.reduce((sum, size) => sum + size.vcpus, 0)
  const memory = sizes.reduce((sum, size) => sum + size.memory_mib, 0)
  const isWithin = vcpus <= capacity.vcpus && memory <= capacity.memory_mib
  return isWithin ? null : `${String(vcpus)} vcpus and ${String(memory)} MiB`
}

function withinLimits({ after, limits }: Sight): string | null {
  if (limits === null) return null
  const visible = [...after.sandboxes.values()].filter(({ visible_until }) => visible_until === null).length
  const running = [...after.runs.values()].filter(
    (run) => run.ended_at === null && run.stop_requested_at === null && !run.is_ephemeral,
  )
  if (visible > limits.sandboxes) return `${String(visible)} sandboxes`
  return running.length > limits.running ? `${String(running.length)} that start or run` : null
}

function acknowledgedStays({ after, acks }: Sight): string | null {
  for (const id of acks.created) if (!after.sandboxes.has(id)) return `${id} was created and is not there`
  for (const id of acks.deleted)
    if (after.sandboxes.get(id)?.visible_until === null) return `${id} was deleted and is there`
  for (const id of acks.stopped) {
    const run = after.runs.get(id)
    if (run?.ended_at === null && run.stop_requested_at === null) return `run ${id} was stopped and goes on`
  }
  for (const [id, name] of acks.named) if (after.sandboxes.get(id)?.name !== name) return `${id} is not named ${name}`
  return null
}

function oneLife({ machines }: Sight): string | null {
  const placeOf = new Map<string, string>()
  for (const machine of machines)
    for (const { sandbox_id } of machine.alive()) {
      const other = placeOf.get(sandbox_id)
      if (other !== undefined) return `${sandbox_id} lives on ${other} and on ${machine.name}`
      placeOf.set(sandbox_id, machine.name)
    }
  return null
}

function livesAreOpen({ machines, after }: Sight): string | null {
  for (const machine of machines)
    for (const { run_id } of machine.alive()) {
      const run = after.runs.get(run_id)
      if (run === undefined) return `${machine.name} runs ${run_id}, which nobody asked for`
      if (run.ended_at !== null)
        return `${machine.name} runs ${run_id}, which is ${run.outcome ?? 'over'}: ${run.message ?? ''}`
      if (run.worker_id !== machine.id) return `${machine.name} runs ${run_id}, which is another worker's`
    }
  return null
}

/** Open runs by sandbox. */
export function openBySandbox(snapshot: Snapshot): ReadonlyMap<SandboxId, readonly RunSeen[]> {
  const open = [...snapshot.runs.values()].filter(({ ended_at }) => ended_at === null)
  return Map.groupBy(open, ({ sandbox_id }) => sandbox_id)
}
