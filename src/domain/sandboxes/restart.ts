/** The restart policy of a sandbox, which its client chooses by a label. */
import type { CauseCode, TransitionEvent } from './lifecycle.ts'
import type { RunOutcome } from './run.ts'

export const RESTART_LABEL = 'sandyard.restart'
/** `on-failure` restarts after failures, and `always` also after the exit code 0. */
export const RESTART_POLICIES = ['on-failure', 'always'] as const
export type RestartPolicy = (typeof RESTART_POLICIES)[number]

export function isRestartPolicy(text: string): text is RestartPolicy {
  return RESTART_POLICIES.some((policy) => policy === text)
}

/** How often a sandbox is restarted in a row. */
export const RESTARTS_MAX = 20
/** A run that lasts this long was no failed restart, in milliseconds: the count begins again. */
export const STABLE_RUN_MS = 10 * 60_000
const FIRST_BACKOFF_MS = 1_000
const LONGEST_BACKOFF_MS = 300_000

/** The time from the end of a run to the restart, in milliseconds. `count` is the number of the restart, from 1. */
export function restartBackoffMs(count: number): number {
  return Math.min(FIRST_BACKOFF_MS * 2 ** (count - 1), LONGEST_BACKOFF_MS)
}

/** A run that has ended, and the restarts that led to it. */
export type EndedRun = {
  readonly policy: RestartPolicy
  readonly event: TransitionEvent
  readonly outcome: RunOutcome | null
  /** Why the run was asked to stop. Null: nobody asked. */
  readonly stopCause: CauseCode | null
  /** How long the run ran, in milliseconds. Null: it ended before its worker reported that it runs. */
  readonly ranMs: number | null
  /** How many restarts in a row led to this run. */
  readonly count: number
}

/**
 * What follows a run. `restart`: another run, the `count`-th restart in a row. `given_up`: the policy would restart the
 * sandbox, but it was restarted too often. `none`: the policy doesn't apply to this end.
 */
export type AfterRun = { readonly kind: 'restart'; readonly count: number } | { readonly kind: 'given_up' | 'none' }

/** Decides by the policy what follows a run. */
export function afterRun(run: EndedRun): AfterRun {
  if (!isCoveredBy(run)) return { kind: 'none' }
  const count = run.ranMs !== null && run.ranMs >= STABLE_RUN_MS ? 1 : run.count + 1
  return count > RESTARTS_MAX ? { kind: 'given_up' } : { kind: 'restart', count }
}

function isCoveredBy({ policy, event, outcome, stopCause, count }: EndedRun): boolean {
  if (stopCause !== null) return stopCause === 'drained'
  if (event === 'stop_requested') return false
  if (event === 'worker_lost' || outcome?.kind === 'lost') return true
  // The first start of a sandbox fails for a reason that its client can correct, such as a mistyped image.
  if (event === 'worker_start_failed' && count === 0) return false
  if (outcome?.kind === 'exited' && outcome.code === 0) return policy === 'always'
  return true
}
