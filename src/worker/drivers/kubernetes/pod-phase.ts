import { constants } from 'node:os'
import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import type { ObservedPhase } from '../shared/run-supervisor.ts'
import { isOver, sandboxStatus, type Pod, type Terminated } from './pod.ts'
import type { PodRunRecord } from './context.ts'

/** What is known of a run's Pod. */
export type PodEvidence = {
  readonly isBeingStarted: boolean
  /** The Pod with the name of the run. Undefined: the API server has none. */
  readonly pod: Pod | undefined
  /** The last state of that Pod, if it was deleted while this process watched. */
  readonly last: Pod | undefined
}

/**
 * Derives a run's phase. A run has ended only if the kubelet said so, or if the API server has no such Pod any more. A Pod that is being
 * deleted, and one whose node doesn't answer, goes on. A recorded outcome is final.
 */
export function derivePodPhase(record: PodRunRecord, { isBeingStarted, pod, last }: PodEvidence): ObservedPhase {
  const { started, is_stop_requested: isStopping } = record
  if (record.outcome !== null) return { phase: 'ended', outcome: record.outcome }
  if (started === null) {
    if (isBeingStarted) return { phase: isStopping ? 'stopping' : 'starting' }
    return { phase: 'ended', outcome: { kind: 'lost', message: 'the worker ended while the sandbox was starting' } }
  }
  const isSame = pod?.metadata.uid === started.pod_uid
  if (isSame && !isOver(pod)) return { phase: isStopping ? 'stopping' : 'running' }
  if (isStopping) return { phase: 'ended', outcome: { kind: 'stopped' } }
  const over = isSame ? pod : last?.metadata.uid === started.pod_uid ? last : undefined
  return { phase: 'ended', outcome: outcomeOf(over) }
}

function outcomeOf(pod: Pod | undefined): RunOutcome {
  if (pod === undefined)
    return { kind: 'lost', message: 'the Pod of the sandbox was deleted while no worker watched it' }
  const { reason, message } = pod.status ?? {}
  if (pod.metadata.deletionTimestamp !== undefined && !isOver(pod))
    return { kind: 'lost', message: 'the Pod of the sandbox was deleted by somebody else' }
  const terminated = sandboxStatus(pod)?.state?.terminated
  if (reason !== undefined || terminated === undefined)
    return {
      kind: 'lost',
      message: `the cluster ended the Pod of the sandbox: ${reason ?? 'no reason'} ${message ?? ''}`.trim(),
    }
  return outcomeOfEnd(terminated)
}

function outcomeOfEnd({ exitCode, reason }: Terminated): RunOutcome {
  if (reason === 'OOMKilled') return { kind: 'out_of_memory' }
  const signal = Object.entries(constants.signals).find(([, number]) => number === exitCode - 128)
  return signal === undefined ? { kind: 'exited', code: exitCode } : { kind: 'signalled', signal: signal[0] }
}
