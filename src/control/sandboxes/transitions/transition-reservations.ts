/** Reserves the capacity and the volumes that a step needs on a worker, in the transaction that moves its sandbox. */
import type { Queryable } from '../../../store/postgres/database.ts'
import * as capacity from '../../../store/workers/capacity.ts'
import * as volumeMounts from '../../../store/volumes/volume-mounts.ts'
import { staleAnswer, type TransitionAnswer, type TransitionRequest, type TransitionStep } from './transition-step.ts'

/** Steps that are refused, each with its answer. */
export type RefusedSteps = ReadonlyMap<TransitionStep, TransitionAnswer>

/**
 * Locks the workers that placements name, and reads what is free there. Null if the requests place nothing. The placement
 * loop decides from a snapshot of the fleet, which may be out of date. Only this transaction knows whether a worker still has
 * the capacity.
 */
export async function lockChosenWorkers(
  tx: Queryable,
  requests: readonly TransitionRequest[],
  now: Date,
): Promise<capacity.FreeCapacity | null> {
  const chosen = requests.flatMap(({ event, worker }) => (event === 'placed' && worker !== undefined ? [worker] : []))
  if (chosen.length === 0) return null
  return capacity.lockFree(
    tx,
    chosen.map(({ id, ports }) => ({ worker_id: id, ...(ports === undefined ? {} : { ports }) })),
    now,
  )
}

/** Reserves capacity for placements on the chosen workers, and refuses those that don't fit. */
export function reserveCapacity(free: capacity.FreeCapacity | null, steps: readonly TransitionStep[]): RefusedSteps {
  const reservations = steps.flatMap((step) => {
    const { request, row } = step
    if (request.event !== 'placed' || request.worker === undefined) return []
    const { vcpus, memory_mib, home_worker_id, disk_size_mib } = row
    const { id: worker_id, ports } = request.worker
    const disk_mib = home_worker_id === worker_id ? 0 : disk_size_mib
    return [{ step, worker_id, vcpus, memory_mib, disk_mib, ...(ports === undefined ? {} : { ports }) }]
  })
  const fits = free?.reserve(reservations) ?? []
  return new Map(
    reservations.flatMap(({ step }, index) => (fits[index] === true ? [] : [[step, staleAnswer(step.row)]])),
  )
}

/** Whether a step must lock volumes. */
export function locksVolumes({ row, request }: TransitionStep): boolean {
  return row.mounts_volumes && (request.event === 'start_admitted' || request.event === 'placed')
}

/**
 * Locks the volumes of starts, and refuses a start with a volume that is not active. Makes the chosen worker of a
 * placement the home of its volumes, and refuses a placement with a volume that has another home.
 */
export async function assignVolumes(tx: Queryable, steps: readonly TransitionStep[]): Promise<RefusedSteps> {
  const refused = new Map<TransitionStep, TransitionAnswer>()
  for (const step of steps.filter(locksVolumes)) {
    const { sandbox_id, event, worker } = step.request
    if (event === 'start_admitted' && (await volumeMounts.lockMounted(tx, sandbox_id)).length > 0)
      refused.set(step, { kind: 'volumes_gone', names: await volumeMounts.unavailableNames(tx, sandbox_id) })
    if (event === 'placed' && worker !== undefined && !(await volumeMounts.assignHomes(tx, sandbox_id, worker.id)))
      refused.set(step, staleAnswer(step.row))
  }
  return refused
}
