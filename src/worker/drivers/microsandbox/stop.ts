import { isAlive, sendSignal } from '../../processes/process-identity.ts'
import type { VmContext } from './context.ts'
import type { VmRunRecord } from './vm-records.ts'

const POLL_MS = 20

/**
 * Gives the workload its time to end: SIGTERM, and at most `graceMs`. Without a workload there is nothing to wait for:
 * what clients started gets its SIGTERM when the guest switches off, as with the genuine service.
 */
export async function stopWorkload({ clock, records }: VmContext, record: VmRunRecord, graceMs: number): Promise<void> {
  const { run_id, started } = record
  if (started === null || started.watcher === null || graceMs === 0) return
  if (!isAlive(started.watcher)) return
  sendSignal(started.watcher.pid, 'SIGTERM')
  const deadlineMs = clock.monotonicMs() + graceMs
  const isOver = async (): Promise<boolean> =>
    (await records.readEnd(run_id)) !== null || !isAlive(started.vm) || clock.monotonicMs() >= deadlineMs
  while (!(await isOver())) await clock.sleep(POLL_MS)
}
