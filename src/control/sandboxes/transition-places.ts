/** Where a run may go is settled in the transaction that moves its sandbox: the worker's room, and its volumes. */
import type { Queryable } from '../../store/postgres/database.ts'
import * as capacity from '../../store/workers/rooms.ts'
import * as volumeMounts from '../../store/volumes/volume-mounts.ts'
import { staleOf, type Step } from './transition-writes.ts'
import type { TransitionAnswer } from './transition.ts'

/** Steps that can't be taken, each with its answer. */
export type Refused = ReadonlyMap<Step, TransitionAnswer>

/** A placement was chosen by a picture of the fleet; whether the worker has that room is settled in its own transaction. */
export async function settleRoom(tx: Queryable, steps: readonly Step[], now: Date): Promise<Refused> {
  const takings = steps.flatMap((step) => {
    const { request, row } = step
    if (request.event !== 'placed' || request.worker === undefined) return []
    return [{ step, worker_id: request.worker.id, vcpus: row.vcpus, memory_mib: row.memory_mib }]
  })
  if (takings.length === 0) return new Map()
  const fits = await capacity.reserve(tx, takings, now)
  return new Map(takings.flatMap(({ step }, index) => (fits[index] === true ? [] : [[step, staleOf(step.row)]])))
}

/** Whether volumes must be locked for a step. */
export function needsVolumes({ row, request }: Step): boolean {
  return row.mounts_volumes && (request.event === 'start_admitted' || request.event === 'placed')
}

/** A start needs its volumes active, a placement needs them on that worker; either is settled in its own transaction. */
export async function settleVolumes(tx: Queryable, steps: readonly Step[]): Promise<Refused> {
  const refused = new Map<Step, TransitionAnswer>()
  for (const step of steps.filter(needsVolumes)) {
    const { sandbox_id, event, worker } = step.request
    if (event === 'start_admitted' && (await volumeMounts.hold(tx, sandbox_id)).length > 0)
      refused.set(step, { kind: 'volumes_gone', names: await volumeMounts.lostNames(tx, sandbox_id) })
    if (event === 'placed' && worker !== undefined && !(await volumeMounts.settleAll(tx, sandbox_id, worker.id)))
      refused.set(step, staleOf(step.row))
  }
  return refused
}
