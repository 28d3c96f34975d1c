/** Where a run may go is settled in the transaction that moves its sandbox: the worker's room, and its volumes. */
import type { Queryable } from '../../store/postgres/database.ts'
import * as capacity from '../../store/workers/capacity.ts'
import * as volumeMounts from '../../store/volumes/volume-mounts.ts'
import { staleAnswer, type TransitionStep } from './transition-writes.ts'
import type { TransitionAnswer } from './transition.ts'

/** Steps that can't be taken, each with its answer. */
export type RefusedSteps = ReadonlyMap<TransitionStep, TransitionAnswer>

/** A placement was chosen by a picture of the fleet; whether the worker has that room is settled in its own transaction. */
export async function reserveCapacity(
  tx: Queryable,
  steps: readonly TransitionStep[],
  now: Date,
): Promise<RefusedSteps> {
  const takings = steps.flatMap((step) => {
    const { request, row } = step
    if (request.event !== 'placed' || request.worker === undefined) return []
    return [{ step, worker_id: request.worker.id, vcpus: row.vcpus, memory_mib: row.memory_mib }]
  })
  if (takings.length === 0) return new Map()
  const fits = await capacity.reserve(tx, takings, now)
  return new Map(takings.flatMap(({ step }, index) => (fits[index] === true ? [] : [[step, staleAnswer(step.row)]])))
}

/** Whether volumes must be locked for a step. */
export function locksVolumes({ row, request }: TransitionStep): boolean {
  return row.mounts_volumes && (request.event === 'start_admitted' || request.event === 'placed')
}

/** A start needs its volumes active, a placement needs them on that worker; either is settled in its own transaction. */
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
