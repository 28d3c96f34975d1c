/** The lifecycle of a sandbox: its statuses, and the events that move it between them. */
export const SANDBOX_STATUSES = ['created', 'starting', 'running', 'stopping', 'stopped', 'failed'] as const
export type SandboxStatus = (typeof SANDBOX_STATUSES)[number]

/** Why a sandbox that is `starting` does not run yet. */
export const STATUS_REASONS = ['scheduling', 'insufficient_capacity'] as const
export type StatusReason = (typeof STATUS_REASONS)[number]

export const TRANSITION_EVENTS = [
  'start_admitted',
  'placed',
  'no_capacity',
  'worker_running',
  'worker_start_failed',
  'stop_requested',
  'ended_well',
  'ended_badly',
  'worker_stopped',
  'worker_lost',
] as const
export type TransitionEvent = (typeof TRANSITION_EVENTS)[number]

/**
 * The causes of a sandbox's status changes, each with its meaning. The audit event of a status change and the run
 * contain the code of the cause. docs/events.md lists all causes.
 */
export const CAUSES = {
  requested: 'A client requested the change.',
  deleted: 'A client deleted the sandbox.',
  placement: 'A worker was assigned to the run, or no worker has the capacity now.',
  worker_report: 'The worker of the run reported the change.',
  workload_ended: 'The workload ended by itself.',
  idle_timeout: 'The sandbox was not used for the time of its idle timeout.',
  max_duration: 'The run reached the maximum duration of its sandbox.',
  max_uptime: 'The run reached the maximum uptime of the organization.',
  pool_exhausted: 'The included hours of the month are used up.',
  suspended: 'The organization was suspended.',
  drained: 'The worker of the run is drained, and the deadline of the drain has passed.',
  restart_policy: 'The label `sandyard.restart` of the sandbox asks for another run.',
  worker_lost: 'The lease of the worker of the run ended without a report, or the worker was removed.',
  restored: 'The run was open in the backup from which the installation was restored.',
} as const
export type CauseCode = keyof typeof CAUSES

/** Whether the latest run of a sandbox with this status has ended. */
export function isTerminal(status: SandboxStatus): boolean {
  return status === 'stopped' || status === 'failed'
}

/** Whether a sandbox with this status has an open run. */
export function isActive(status: SandboxStatus): boolean {
  return status === 'starting' || status === 'running' || status === 'stopping'
}

/**
 * The state that decides the next status of a sandbox. `isPlaced`: its run has a worker. `isToRestart`: its run has
 * ended, and its restart policy will start another one. `isDrained`: its run stops for a drain, and a client's stop is
 * still to be noted, because it also ends the restart policy.
 */
export type LifecycleState = {
  readonly status: SandboxStatus
  readonly isPlaced: boolean
  readonly isToRestart?: boolean
  readonly isDrained?: boolean
}

/** The status after an event, or null if the event does not apply in this state. */
export function nextStatus(state: LifecycleState, event: TransitionEvent): SandboxStatus | null {
  return TRANSITIONS[event](state)
}

const TRANSITIONS: Record<TransitionEvent, (state: LifecycleState) => SandboxStatus | null> = {
  start_admitted: ({ status }) => (status === 'created' || isTerminal(status) ? 'starting' : null),
  placed: ({ status, isPlaced }) => (status === 'starting' && !isPlaced ? 'starting' : null),
  no_capacity: ({ status, isPlaced }) => (status === 'starting' && !isPlaced ? 'starting' : null),
  worker_running: ({ status, isPlaced }) => (status === 'starting' && isPlaced ? 'running' : null),
  worker_start_failed: ({ status, isPlaced }) => {
    if (!isPlaced) return null
    if (status === 'starting') return 'failed'
    return status === 'stopping' ? 'stopped' : null
  },
  stop_requested: ({ status, isPlaced, isToRestart = false, isDrained = false }) => {
    if (isToRestart && isTerminal(status)) return 'stopped'
    if (status === 'starting') return isPlaced ? 'stopping' : 'stopped'
    return status === 'running' || (status === 'stopping' && isDrained) ? 'stopping' : null
  },
  ended_well: ({ status }) => {
    if (status === 'running' || status === 'stopping') return 'stopped'
    return status === 'starting' ? 'stopped' : null
  },
  ended_badly: ({ status }) => {
    if (status === 'stopping') return 'stopped'
    return status === 'running' || status === 'starting' ? 'failed' : null
  },
  worker_stopped: ({ status }) => (status === 'stopping' ? 'stopped' : null),
  worker_lost: ({ status, isPlaced }) => (isActive(status) && isPlaced ? 'failed' : null),
}
