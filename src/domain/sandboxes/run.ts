import type { TransitionEvent } from './lifecycle.ts'

/** How a run ended. `message` is for people and contains no secret. */
export type RunOutcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled'; readonly signal: string }
  | { readonly kind: 'out_of_memory' }
  /** The worker stopped the run because its machine's disk was full and the run's files grew most. */
  | { readonly kind: 'disk_full' }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'start_failed'; readonly reason: StartFailure; readonly message: string }
  | { readonly kind: 'lost'; readonly message: string }

/** The reasons for which a driver's start can fail. */
export const START_FAILURES = [
  'image',
  'registry',
  'patch',
  'mount',
  'config',
  'network',
  'disk',
  'runtime',
  'host',
  'cancelled',
] as const
export type StartFailure = (typeof START_FAILURES)[number]

const DISK_FULL_MESSAGE =
  "the machine's disk is full: the sandbox was stopped because its files grew most; its disk and volumes are kept"

/**
 * The effect of a run's end on its sandbox: the transition event, and a message about the failure. The message is null
 * if there was no failure.
 */
export function transitionOfOutcome(outcome: RunOutcome): {
  readonly event: TransitionEvent
  readonly message: string | null
} {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code === 0
        ? { event: 'ended_well', message: null }
        : { event: 'ended_badly', message: `the workload exited with code ${String(outcome.code)}` }
    case 'signalled':
      return { event: 'ended_badly', message: `the workload was ended by ${outcome.signal}` }
    case 'out_of_memory':
      return { event: 'ended_badly', message: 'out of memory: the sandbox used all of its resources.memory_mib' }
    case 'disk_full':
      return { event: 'ended_badly', message: DISK_FULL_MESSAGE }
    case 'stopped':
      return { event: 'ended_well', message: null } // the worker's operator shut the worker down cleanly
    case 'start_failed':
      return { event: 'worker_start_failed', message: outcome.message }
    case 'lost':
      return { event: 'ended_badly', message: outcome.message }
  }
}
