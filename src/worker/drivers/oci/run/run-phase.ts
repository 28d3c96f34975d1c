import { constants } from 'node:os'
import type { RunOutcome } from '../../../../contract/workers/worker-protocol.ts'
import type { ObservedPhase } from '../../shared/run-supervisor.ts'
import type { ExitFile, OciRunRecord } from './run-records.ts'
import { MACHINE_RESTARTED } from '../../shared/run-records.ts'
import type { OciContext } from '../context.ts'
import { isAlive } from '../../../processes/process-identity.ts'

/** Derives a run's phase from its record and from the current state of the machine. */
export async function observeRun(
  context: OciContext,
  record: OciRunRecord,
  isBeingStarted: boolean,
): Promise<ObservedPhase> {
  const { records, memoryKills, bootId } = context
  const { started } = record
  const isSameBoot = record.boot_id === bootId
  const shim = started?.shim ?? null
  const init = started?.init ?? null
  const isInitAlive = isSameBoot && init !== null && context.isAlive(init)
  // Check the shim only if the init is gone. When many runs are checked, most of the time is spent on reading processes
  // from the kernel.
  const isShimAlive = !isInitAlive && isSameBoot && shim !== null && isAlive(shim)
  // Read the exit file only after the check of the processes. A shim that the check found dead wrote its file before it
  // ended.
  const exit = records.readExit(record.run_id)
  const hasRunOutOfMemory = exit !== null && mayBeKilled(record, exit.code) && (await memoryKills.endedByKill(record))
  // The run may have been released since `record` was read. Its cgroup's memory counters are then gone, but the latest
  // record contains the outcome.
  const latest = exit !== null && record.outcome === null ? (records.read(record.run_id) ?? record) : record
  return deriveRunPhase(latest, { bootId, exit, isShimAlive, isInitAlive, hasRunOutOfMemory, isBeingStarted })
}

/** The observable facts about a run on this machine, apart from its record. */
export type RunEvidence = {
  readonly bootId: string
  readonly exit: ExitFile | null
  readonly isShimAlive: boolean
  readonly isInitAlive: boolean
  readonly hasRunOutOfMemory: boolean
  /** Whether this process is starting the run now. */
  readonly isBeingStarted: boolean
}

/** Derives a run's phase. A recorded outcome is final. */
export function deriveRunPhase(record: OciRunRecord, evidence: RunEvidence): ObservedPhase {
  if (record.outcome !== null) return { phase: 'ended', outcome: record.outcome }
  const live = record.is_stop_requested ? 'stopping' : 'running'
  if (record.started === null) {
    if (evidence.isBeingStarted) return { phase: record.is_stop_requested ? 'stopping' : 'starting' }
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the worker ended while the sandbox was starting' } }
  }
  if (endedWithMachine(record, evidence)) return { phase: 'ended', outcome: MACHINE_RESTARTED }
  if (evidence.exit !== null) return { phase: 'ended', outcome: outcomeOf(record, evidence, evidence.exit.code) }
  // A live shim will still write the exit code, even if the container's first process is gone.
  if (evidence.isInitAlive || evidence.isShimAlive) return { phase: live }
  if (record.is_stop_requested) return { phase: 'ended', outcome: { kind: 'stopped' } }
  return {
    phase: 'ended',
    outcome: { kind: 'lost', message: 'the sandbox ended while no process watched it; the outcome is unknown' },
  }
}

/**
 * Whether a run ended because the machine was restarted. A restart in order ends every process with SIGTERM and then SIGKILL, so
 * the shim may have had the time to write such a code.
 */
function endedWithMachine(record: OciRunRecord, { bootId, exit }: RunEvidence): boolean {
  return record.boot_id !== bootId && (exit === null || exit.code === TERMINATED || exit.code === KILLED)
}

/** The exit code 128 + SIGTERM. */
const TERMINATED = 143
/** The exit code 128 + SIGKILL. */
const KILLED = 137
/** The exit code of runsc when gVisor's kernel was killed, for example by the host because memory ran out. */
const GVISOR_DIED = 128

/** Whether a run that ended with this code may have been killed by the host. */
function mayBeKilled({ started }: OciRunRecord, code: number): boolean {
  return code === KILLED || (code === GVISOR_DIED && started?.runtime.name === 'runsc')
}

function outcomeOf(record: OciRunRecord, evidence: RunEvidence, code: number): RunOutcome {
  if (record.is_stop_requested) return { kind: 'stopped' }
  const signal = signalOf(code)
  if (evidence.hasRunOutOfMemory && mayBeKilled(record, code)) return { kind: 'out_of_memory' }
  return signal === null ? { kind: 'exited', code } : { kind: 'signalled', signal }
}

/** Runtimes, inits and shells report a signal as 128 + its number. A program that exits with such a code looks the same. */
function signalOf(code: number): string | null {
  const entry = Object.entries(constants.signals).find(([, number]) => number === code - 128)
  return entry === undefined ? null : entry[0]
}
