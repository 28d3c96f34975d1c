import type { TransitionEvent } from './lifecycle.ts'
import type { RunOutcome } from './run.ts'

/** What the end of a run means for its sandbox: the event, and a message about what failed, or null if nothing did. */
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
    case 'stopped':
      return { event: 'ended_well', message: null } // the worker's operator shut it down cleanly
    case 'start_failed':
      return { event: 'worker_start_failed', message: outcome.message }
    case 'lost':
      return { event: 'ended_badly', message: outcome.message }
  }
}
