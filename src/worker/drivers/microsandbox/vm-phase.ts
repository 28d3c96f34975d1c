import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import { isAlive } from '../../processes/process-identity.ts'
import { MACHINE_RESTARTED } from '../shared/run-records.ts'
import type { ObservedPhase } from '../shared/run-supervisor.ts'
import type { VmContext } from './context.ts'
import { vmPaths } from './installation.ts'
import type { VmStatus } from './msb-cli.ts'
import type { VmRunRecord, WorkloadEnd } from './vm-records.ts'

/** The observable facts about a run on this machine, apart from its record. */
export type VmEvidence = {
  readonly bootId: string
  readonly isBeingStarted: boolean
  readonly isVmAlive: boolean
  /**
   * False once the workload's watcher process is gone. The relay has then killed the workload, and no process reports
   * how the workload ended.
   */
  readonly isWatched: boolean
  readonly end: WorkloadEnd | null
  /** The runtime's status of the sandbox. Null unless it is needed to find out how the run ended. */
  readonly status: VmStatus | null
  readonly hasRunOutOfMemory: boolean
}

/** Derives a run's phase. A recorded outcome is final. */
export function deriveVmPhase(record: VmRunRecord, evidence: VmEvidence): ObservedPhase {
  const { started, is_stop_requested: isStopping } = record
  if (record.outcome !== null) return { phase: 'ended', outcome: record.outcome }
  if (started === null) {
    if (evidence.isBeingStarted) return { phase: isStopping ? 'stopping' : 'starting' }
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the worker ended while the sandbox was starting' } }
  }
  if (isStopping) return evidence.isVmAlive ? { phase: 'stopping' } : { phase: 'ended', outcome: { kind: 'stopped' } }
  // A restart of the machine in order ends each workload by a signal, which the watcher may have had the time to write.
  const isOfEarlierBoot = record.boot_id !== evidence.bootId && evidence.end?.kind === 'signalled'
  const isSaid = evidence.end !== null && evidence.end.kind !== 'lost' && !isOfEarlierBoot
  if (evidence.end !== null && isSaid) return { phase: 'ended', outcome: outcomeOf(evidence.end, evidence) }
  if (record.boot_id !== evidence.bootId) return { phase: 'ended', outcome: MACHINE_RESTARTED }
  if (evidence.isVmAlive && !evidence.isWatched)
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the process that waits for the workload was killed' } }
  if (evidence.isVmAlive) return { phase: 'running' }
  return { phase: 'ended', outcome: outcomeOfVm(evidence) }
}

function outcomeOf(
  end: Exclude<WorkloadEnd, { readonly kind: 'lost' }>,
  { hasRunOutOfMemory }: VmEvidence,
): RunOutcome {
  switch (end.kind) {
    case 'exited':
      return { kind: 'exited', code: end.code }
    case 'signalled': // the agent does not report which signal; the guest kernel's log shows whether memory ran out
      return hasRunOutOfMemory ? { kind: 'out_of_memory' } : { kind: 'signalled', signal: 'a signal' }
    case 'failed':
      return { kind: 'lost', message: `the workload could not be started: ${end.message}` }
  }
}

/**
 * Returns the outcome of a virtual machine that ended without a report of its workload's end. Either the guest shut the machine
 * down, or the machine crashed.
 */
function outcomeOfVm({ status, hasRunOutOfMemory }: VmEvidence): RunOutcome {
  if (hasRunOutOfMemory) return { kind: 'out_of_memory' }
  if (status === 'stopped') return { kind: 'exited', code: 0 }
  return { kind: 'lost', message: 'the virtual machine ended unexpectedly' }
}

/** Derives a run's phase from its record and from the current state of the machine. */
export async function observeVm(
  context: VmContext,
  record: VmRunRecord,
  isBeingStarted: boolean,
): Promise<ObservedPhase> {
  const { bootId, records } = context
  const isVmAlive = record.boot_id === bootId && record.started !== null && isAlive(record.started.vm)
  const watcher = record.started?.watcher ?? null
  const hasWatcher = record.started?.has_workload === true
  const isWatcherAlive = hasWatcher && watcher !== null && isAlive(watcher)
  // Read the end file only after the check of the processes. A watcher that the check found dead wrote its file before
  // it ended.
  const end = await records.readEnd(record.run_id)
  const isOpen = record.outcome === null && record.started !== null && !record.is_stop_requested
  const paths = vmPaths(context.home, record.sandbox_id)
  const needsStatus = isOpen && !isVmAlive && (end === null || end.kind === 'lost')
  const status = needsStatus ? await context.msb.status(paths.name) : null
  const mayBeMemory = isOpen && (end?.kind === 'signalled' || needsStatus)
  const hasRunOutOfMemory = mayBeMemory && (await saysOutOfMemory(join(paths.logs, 'kernel.log')))
  const isWatched = !hasWatcher || isWatcherAlive || end !== null
  return deriveVmPhase(record, { bootId, isBeingStarted, isVmAlive, isWatched, end, status, hasRunOutOfMemory })
}

/** How many bytes at the end of the guest kernel's log are searched. */
const KERNEL_LOG_BYTES = 64 * 1024

/** Whether the guest's kernel has logged an out-of-memory kill since the virtual machine's last boot. */
async function saysOutOfMemory(path: string): Promise<boolean> {
  try {
    await using handle = await open(path, 'r')
    const { size } = await handle.stat()
    const from = Math.max(0, size - KERNEL_LOG_BYTES)
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(KERNEL_LOG_BYTES), 0, KERNEL_LOG_BYTES, from)
    const text = buffer.toString('latin1', 0, bytesRead)
    return /Out of memory: Killed process|oom-kill:/.test(text.slice(Math.max(0, text.lastIndexOf('Linux version '))))
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return false
    throw error
  }
}
