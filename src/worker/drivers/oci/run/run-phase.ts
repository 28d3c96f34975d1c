import { constants } from 'node:os'
import type { RunOutcome, RunPhase } from '../../../../contract/workers/worker-protocol.ts'
import type { ExitFile, OciRunRecord } from './run-records.ts'

/** What the machine shows of a run, beside its record. */
export type RunEvidence = {
  readonly bootId: string
  readonly exit: ExitFile | null
  readonly isShimAlive: boolean
  readonly isInitAlive: boolean
  readonly hasRunOutOfMemory: boolean
  /** Whether this process is starting it right now. */
  readonly isBeingStarted: boolean
}

export type ObservedPhase =
  { readonly phase: Exclude<RunPhase, 'ended'> } | { readonly phase: 'ended'; readonly outcome: RunOutcome }

/** Where a run stands. What was recorded as its end stays its end. */
export function deriveRunPhase(record: OciRunRecord, evidence: RunEvidence): ObservedPhase {
  if (record.outcome !== null) return { phase: 'ended', outcome: record.outcome }
  const live = record.is_stop_requested ? 'stopping' : 'running'
  if (record.started === null) {
    if (evidence.isBeingStarted) return { phase: record.is_stop_requested ? 'stopping' : 'starting' }
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the worker ended while the sandbox was starting' } }
  }
  if (evidence.exit !== null) return { phase: 'ended', outcome: outcomeOf(record, evidence, evidence.exit.code) }
  if (record.boot_id !== evidence.bootId)
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the machine was restarted' } }
  // While the shim lives, the exit code is on its way even if the first process is gone.
  if (evidence.isInitAlive || evidence.isShimAlive) return { phase: live }
  if (record.is_stop_requested) return { phase: 'ended', outcome: { kind: 'stopped' } }
  return {
    phase: 'ended',
    outcome: { kind: 'lost', message: 'the sandbox ended while nobody watched: how is not known' },
  }
}

/** 128 and SIGKILL. */
const KILLED = 137
/** What runsc exits with when the sandbox's kernel itself was killed, as the host does when memory runs out. */
const GVISOR_DIED = 128

/** Whether a run that ended with this code may have been killed by the host. */
export function mayBeKilled({ started }: OciRunRecord, code: number): boolean {
  return code === KILLED || (code === GVISOR_DIED && started?.runtime.name === 'runsc')
}

function outcomeOf(record: OciRunRecord, evidence: RunEvidence, code: number): RunOutcome {
  if (record.is_stop_requested) return { kind: 'stopped' }
  const signal = signalOf(code)
  if (evidence.hasRunOutOfMemory && mayBeKilled(record, code)) return { kind: 'out_of_memory' }
  return signal === null ? { kind: 'exited', code } : { kind: 'signalled', signal }
}

/** Runtimes, inits and shells all tell a signal as 128 and its number; a program that exits so itself looks the same. */
function signalOf(code: number): string | null {
  const entry = Object.entries(constants.signals).find(([, number]) => number === code - 128)
  return entry === undefined ? null : entry[0]
}
