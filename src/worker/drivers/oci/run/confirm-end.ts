import type { ObservedPhase } from '../../shared/run-supervisor.ts'
import { describeProcess, sendSignal } from '../../../processes/process-identity.ts'
import type { OciContext } from '../context.ts'
import { containerIdOf, type OciRunRecord } from './run-records.ts'

/** How long an observation of a run waits for the end of processes that it killed. */
const KILL_TIMEOUT_MS = 500
const KILL_POLL_MS = 5

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
  const deadlineMs = clock.monotonicMs() + KILL_TIMEOUT_MS
  for (;;) {
    const pids = await cgroups.pids(containerIdOf(record))
    if (pids.length === 0) return phase
    for (const pid of pids) sendSignal(pid, 'SIGKILL')
    if (clock.monotonicMs() >= deadlineMs) {
      log.error(
        { run_id: record.run_id, processes: pids.map(describeProcess) },
        "processes of a sandbox can't be killed, so it counts as running",
      )
      return { phase: record.started === null || record.is_stop_requested ? 'stopping' : 'running' }
    }
    await clock.sleep(KILL_POLL_MS)
  }
}
