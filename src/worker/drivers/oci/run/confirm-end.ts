import type { ObservedPhase } from '../../shared/run-supervisor.ts'
import { describeProcess } from '../../../processes/process-identity.ts'
import type { OciContext } from '../context.ts'
import { killWithin } from './release.ts'
import { containerIdOf, type OciRunRecord } from './run-records.ts'

/** How long an observation of a run waits for the end of processes that it killed. */
const KILL_TIMEOUT_MS = 500

/**
 * Confirms that a run has ended: it counts as ended only once its cgroup has no process. Kills those that are left. While one
 * survives, for example because it waits for a disk, the run stays live, and the log says which.
 */
export async function confirmEnd(
  { cgroups, clock, log }: Pick<OciContext, 'cgroups' | 'clock' | 'log'>,
  record: Pick<OciRunRecord, 'run_id' | 'container_id' | 'started' | 'is_stop_requested' | 'outcome'>,
  phase: ObservedPhase,
): Promise<ObservedPhase> {
  if (phase.phase !== 'ended' || record.outcome !== null) return phase
  const left = await killWithin({ clock }, KILL_TIMEOUT_MS, () => cgroups.pids(containerIdOf(record)))
  if (left.length === 0) return phase
  log.error(
    { run_id: record.run_id, processes: left.map(describeProcess) },
    "processes of a sandbox can't be killed, so it counts as running",
  )
  return { phase: record.started === null || record.is_stop_requested ? 'stopping' : 'running' }
}
