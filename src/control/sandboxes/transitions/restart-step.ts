/** What the restart policy of a sandbox (`domain/sandboxes/restart.ts`) adds to a transition, as plain values. */
import { isTerminal } from '../../../domain/sandboxes/lifecycle.ts'
import {
  afterRun,
  isRestartPolicy,
  RESTARTS_MAX,
  restartBackoffMs,
  type AfterRun,
} from '../../../domain/sandboxes/restart.ts'
import type { SandboxChange } from '../../../store/sandboxes/sandbox-state-rows.ts'
import { runEnd } from './run-end.ts'
import type { TransitionStep } from './transition-step.ts'

/** Sets when the sandbox is started again if its run ended. Every other transition ends the wait for a restart. */
export function restartChange(step: TransitionStep): Pick<SandboxChange, 'restart_at' | 'restart_count'> {
  const { request, at } = step
  if (request.event === 'start_admitted')
    return { restart_at: null, ...(request.cause.code === 'restart_policy' ? {} : { restart_count: 0 }) }
  const after = afterRunOf(step)
  if (after?.kind !== 'restart') return { restart_at: null }
  return { restart_at: new Date(at.getTime() + restartBackoffMs(after.count)), restart_count: after.count }
}

/** Whether the policy would restart the sandbox, but it was restarted too often. */
export function hasGivenUp(step: TransitionStep): boolean {
  return afterRunOf(step)?.kind === 'given_up'
}

/** The message of a transition, for the event and the reply. It says when the policy gives up. */
export function messageOf(step: TransitionStep): string | null {
  const { message = null } = step.request.cause
  if (!hasGivenUp(step)) return message
  const why = `sandyard.restart gave up after ${String(RESTARTS_MAX)} restarts in a row`
  return message === null ? why : `${message}; ${why}`
}

function afterRunOf(step: TransitionStep): AfterRun | null {
  const { request, row, status, at } = step
  if (row.restart_policy === null || !isRestartPolicy(row.restart_policy)) return null
  if (!isTerminal(status) || row.run_id === null || row.ephemeral) return null
  return afterRun({
    policy: row.restart_policy,
    event: request.event,
    outcome: request.outcome ?? null,
    stopCause: row.stop_cause,
    ranMs:
      row.started_at === null ? null : runEnd(row.started_at, at, request.ran_ms).getTime() - row.started_at.getTime(),
    count: row.restart_count,
  })
}
