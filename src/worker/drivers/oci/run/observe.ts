import type { OciContext } from '../context.ts'
import { isAlive } from '../../../processes/process-identity.ts'
import { mayBeKilled, deriveRunPhase, type ObservedPhase } from './run-phase.ts'
import type { OciRunRecord } from './run-records.ts'

/** Where a run stands now, by its record and by what the machine shows. */
export async function observeRun(
  context: OciContext,
  record: OciRunRecord,
  isBeingStarted: boolean,
): Promise<ObservedPhase> {
  const { records, cgroups, bootId } = context
  const { started } = record
  const isSameBoot = record.boot_id === bootId
  const shim = started?.shim ?? null
  const init = started?.init ?? null
  const isInitAlive = isSameBoot && init !== null && context.isAlive(init)
  // It matters only once the init is gone, and most of a look at many runs is to read what the kernel tells of a process.
  const isShimAlive = !isInitAlive && isSameBoot && shim !== null && isAlive(shim)
  // After the processes: a shim that ended in between has written its file by now.
  const exit = records.readExit(record.run_id)
  const hasRunOutOfMemory =
    exit !== null && mayBeKilled(record, exit.code) && (await cgroups.hasRunOutOfMemory(record.run_id))
  // Somebody may have settled the run meanwhile, and with its cgroup what told of memory is gone: the record knows.
  const latest = exit !== null && record.outcome === null ? ((await records.read(record.run_id)) ?? record) : record
  return deriveRunPhase(latest, { bootId, exit, isShimAlive, isInitAlive, hasRunOutOfMemory, isBeingStarted })
}
