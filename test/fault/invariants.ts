/** The invariants of schedules: they hold after every step, whatever faults were injected. */
import type { SandboxId } from '../../src/domain/ids.ts'
import {
  isActive,
  nextStatus,
  SANDBOX_STATUSES,
  TRANSITION_EVENTS,
  type SandboxStatus,
} from '../../src/domain/sandboxes/lifecycle.ts'
import type { Acknowledgements } from './clients.ts'
import type { Machine } from './machine.ts'
import type { RunRow, SandboxRow, Snapshot } from './snapshot.ts'

/** The input of an invariant: the database before and after a step, and the machines after the step. */
export type InvariantInput = {
  readonly before: Snapshot
  readonly after: Snapshot
  readonly machines: readonly Machine[]
  readonly capacityOf: ReadonlyMap<string, { readonly vcpus: number; readonly memory_mib: number }>
  readonly limits: { readonly sandboxes: number; readonly running: number } | null
  readonly acknowledged: Acknowledgements
}

export type Invariant = {
  readonly statement: string
  /** Returns a description of the violation, or null if the invariant holds. */
  readonly findViolation: (input: InvariantInput) => string | null
}

/** Invariants of the database, checked after each write. */
export const DATABASE_INVARIANTS: readonly Invariant[] = [
  { statement: 'a status changes only as the lifecycle table allows', findViolation: statusFollowsLifecycle },
  { statement: 'a sandbox is active if and only if it has exactly one open run', findViolation: activeHasOpenRun },
  { statement: 'each transition writes one audit event, and nothing else does', findViolation: oneEventPerTransition },
  {
    statement: 'metered intervals of a sandbox never overlap, and end with their run',
    findViolation: meteredIntervalsDisjoint,
  },
  { statement: 'a run that ended stays as it ended', findViolation: endedStaysEnded },
  { statement: 'no worker is assigned more than its capacity', findViolation: withinCapacity },
  { statement: 'no organization exceeds its limits', findViolation: withinLimits },
  { statement: 'the counts of sandboxes and active runs are exact', findViolation: countsAreExact },
  { statement: 'nothing that was acknowledged is lost', findViolation: acknowledgedIsKept },
]

/** Invariants of machines and the database together, checked after each step. */
export const MACHINE_INVARIANTS: readonly Invariant[] = [
  {
    statement: 'a sandbox has at most one run that is alive, on all machines together',
    findViolation: onePlaceAtATime,
  },
  {
    statement: 'every run that is alive on a machine is an open run of that machine, neither lost nor ended',
    findViolation: livingRunsAreOpen,
  },
  { statement: 'no machine runs more than its capacity', findViolation: machineWithinCapacity },
]

/** The statuses that can follow a status directly. */
const NEXT_STATUSES: ReadonlyMap<SandboxStatus, ReadonlySet<SandboxStatus>> = new Map(
  SANDBOX_STATUSES.map((status) => [
    status,
    new Set(
      TRANSITION_EVENTS.flatMap((event) =>
        [true, false].flatMap((is) => nextStatus({ status, isPlaced: is, isToRestart: !is }, event) ?? []),
      ),
    ),
  ]),
)

function statusFollowsLifecycle({ before, after }: InvariantInput): string | null {
  for (const [id, now] of after.sandboxes) {
    const then = before.sandboxes.get(id)
    const isNew = then === undefined
    if (isNew && now.status !== 'created' && now.status !== 'starting') return `${id} started as ${now.status}`
    if (isNew || then.status === now.status) continue
    if (NEXT_STATUSES.get(then.status)?.has(now.status) !== true)
      return `${id} went from ${then.status} to ${now.status}`
  }
  return null
}

function activeHasOpenRun({ after }: InvariantInput): string | null {
  const open = openBySandbox(after)
  for (const { id, status } of after.sandboxes.values()) {
    const runs = open.get(id)?.length ?? 0
    if (runs !== (isActive(status) ? 1 : 0)) return `${id} is ${status} and has ${String(runs)} open runs`
  }
  return null
}

const TRANSITION_TYPES = ['starting', 'placed', 'waiting', 'running', 'stopping', 'stopped', 'failed']

function oneEventPerTransition({ before, after }: InvariantInput): string | null {
  for (const [id, now] of after.sandboxes) {
    const then = before.sandboxes.get(id)
    const written = TRANSITION_TYPES.reduce((sum, type) => {
      const key = `${id} sandbox_${type}`
      return sum + (after.events.get(key) ?? 0) - (before.events.get(key) ?? 0)
    }, 0)
    const made =
      then === undefined ? transitionsOfCreate(now, after) : Number(stateOf(then, before) !== stateOf(now, after))
    if (written !== made) return `${id} made ${String(made)} transitions and wrote ${String(written)} events`
    const created = after.events.get(`${id} sandbox_created`) ?? 0
    if (created !== 1) return `${id} was created with ${String(created)} events`
    const deleted = after.events.get(`${id} sandbox_deleted`) ?? 0
    const isGone = now.visible_until !== null
    if (deleted > 1 || (deleted === 1 && !isGone) || (deleted === 0 && isGone && !now.ephemeral))
      return `${id} was deleted with ${String(deleted)} events`
  }
  return null
}

/** A create that starts its sandbox may also place it. */
function transitionsOfCreate({ id, status }: SandboxRow, from: Snapshot): number {
  if (status !== 'starting') return 0
  const run = openBySandbox(from).get(id)?.[0]
  return (run?.worker_id ?? null) === null ? 1 : 2
}

function stateOf(sandbox: SandboxRow, from: Snapshot): string {
  const run = openBySandbox(from).get(sandbox.id)?.[0]
  const restart = String(sandbox.restart_at !== null)
  return `${sandbox.status} ${sandbox.status_reason ?? ''} ${run?.id ?? ''} ${run?.worker_id ?? ''} ${restart}`
}

function meteredIntervalsDisjoint({ after }: InvariantInput): string | null {
  const untilOf = new Map<SandboxId, number>()
  // If a clock stepped back, a run may start, end and be followed by the next run in the same instant.
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

function endedStaysEnded({ before, after }: InvariantInput): string | null {
  for (const [id, then] of before.runs) {
    const now = after.runs.get(id)
    if (now === undefined) return `run ${id} is gone`
    if (then.ended_at !== null && now.ended_at !== then.ended_at) return `run ${id} ended again`
    if (then.worker_id !== null && now.worker_id !== then.worker_id) return `run ${id} changed its worker`
    if (then.started_at !== null && now.started_at !== then.started_at) return `run ${id} started again`
    if (then.stop_requested_at !== null && now.stop_requested_at === null) return `run ${id} is no longer asked to stop`
  }
  for (const [id, then] of before.sandboxes)
    if (then.visible_until !== null && after.sandboxes.get(id)?.visible_until === null) return `${id} is visible again`
  return null
}

function withinCapacity({ after, capacityOf }: InvariantInput): string | null {
  for (const [worker, capacity] of capacityOf) {
    const runs = [...after.runs.values()].filter((run) => run.worker_id === worker && run.ended_at === null)
    const violation = exceeds(capacity, runs)
    if (violation !== null) return `worker ${worker} was assigned ${violation}`
  }
  return null
}

function machineWithinCapacity({ machines, capacityOf }: InvariantInput): string | null {
  for (const machine of machines) {
    const capacity = capacityOf.get(machine.id)
    const violation = capacity === undefined ? null : exceeds(capacity, machine.livingRuns())
    if (violation !== null) return `${machine.name} runs ${violation}`
  }
  return null
}

type Size = { readonly vcpus: number; readonly memory_mib: number }

function exceeds(capacity: Size, sizes: readonly Size[]): string | null {
  const vcpus = sizes.reduce((sum, size) => sum + size.vcpus, 0)
  const memory = sizes.reduce((sum, size) => sum + size.memory_mib, 0)
  const isWithin = vcpus <= capacity.vcpus && memory <= capacity.memory_mib
  return isWithin ? null : `${String(vcpus)} vcpus and ${String(memory)} MiB`
}

function withinLimits({ after, limits }: InvariantInput): string | null {
  if (limits === null) return null
  const visible = [...after.sandboxes.values()].filter(({ visible_until }) => visible_until === null).length
  const running = [...after.runs.values()].filter(
    (run) => run.ended_at === null && run.stop_requested_at === null && !run.is_ephemeral,
  )
  if (visible > limits.sandboxes) return `${String(visible)} sandboxes`
  return running.length > limits.running ? `${String(running.length)} runs that count` : null
}

function countsAreExact({ after }: InvariantInput): string | null {
  const visible = [...after.sandboxes.values()].filter(({ visible_until }) => visible_until === null)
  const active = [...after.runs.values()].filter((run) => run.ended_at === null && run.stop_requested_at === null)
  const ephemeral = active.filter((run) => run.is_ephemeral).length
  const { sandboxes, ephemeral_runs, persistent_runs } = after.counts
  const counted = [sandboxes, ephemeral_runs, persistent_runs].join(', ')
  const actual = [visible.length, ephemeral, active.length - ephemeral].join(', ')
  return counted === actual ? null : `${counted} are counted, and there are ${actual}`
}

function acknowledgedIsKept({ after, acknowledged }: InvariantInput): string | null {
  for (const id of acknowledged.created) if (!after.sandboxes.has(id)) return `${id} was created and is missing`
  for (const id of acknowledged.deleted)
    if (after.sandboxes.get(id)?.visible_until === null) return `${id} was deleted and is still visible`
  for (const id of acknowledged.stopped) {
    const run = after.runs.get(id)
    if (run?.ended_at === null && run.stop_requested_at === null)
      return `run ${id} was asked to stop and is not stopping`
  }
  for (const [id, name] of acknowledged.named)
    if (after.sandboxes.get(id)?.name !== name) return `${id} is not named ${name}`
  return null
}

function onePlaceAtATime({ machines }: InvariantInput): string | null {
  const machineOf = new Map<string, string>()
  for (const machine of machines)
    for (const { sandbox_id } of machine.livingRuns()) {
      const other = machineOf.get(sandbox_id)
      if (other !== undefined) return `${sandbox_id} is alive on ${other} and on ${machine.name}`
      machineOf.set(sandbox_id, machine.name)
    }
  return null
}

function livingRunsAreOpen({ machines, after }: InvariantInput): string | null {
  for (const machine of machines)
    for (const { run_id } of machine.livingRuns()) {
      const run = after.runs.get(run_id)
      if (run === undefined) return `${machine.name} runs ${run_id}, which is in no row`
      if (run.ended_at !== null)
        return `${machine.name} runs ${run_id}, which is ${run.outcome ?? 'over'}: ${run.message ?? ''}`
      if (run.worker_id !== machine.id) return `${machine.name} runs ${run_id}, which is another worker's`
    }
  return null
}

/** Open runs by sandbox. */
export function openBySandbox(snapshot: Snapshot): ReadonlyMap<SandboxId, readonly RunRow[]> {
  const open = [...snapshot.runs.values()].filter(({ ended_at }) => ended_at === null)
  return Map.groupBy(open, ({ sandbox_id }) => sandbox_id)
}
