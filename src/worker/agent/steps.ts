import type { ObservedRun } from '../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, VolumeId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock, waitAtMost } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { StartError } from '../start-error.ts'

/** One operation on a run, a sandbox or a volume. */
export type Step = {
  readonly id: RunId | SandboxId | VolumeId
  /** For a start: the state that is reported for the run until the driver lists it. Otherwise null. */
  readonly starting: ObservedRun | null
  readonly work: (abort: AbortSignal) => Promise<void>
}

/** The operations that a worker has under way: at most one at a time for each run, sandbox and volume. */
export type Steps = {
  /** Begins a step. Does nothing if a step for the same id is under way; the runs are observed again when that step ends. */
  begin(step: Step): void
  /** Aborts the start of a run if it is under way. Does not affect other steps. */
  cancelStart(run: RunId): void
  /** The runs whose start is under way, whether or not the driver lists them yet. */
  startingRuns(): readonly ObservedRun[]
  /** Resolves when nothing is under way, or after `limitMs`. */
  waitUntilIdle(limitMs: number): Promise<void>
}

/**
 * How long a failed step counts as under way, so that no new step for the same id begins. This prevents tight retry
 * loops.
 */
const FAILED_STEP_PAUSE_MS = 500

/** Creates an empty set of steps. `onEnd` is called after each step and must not throw. */
export function makeSteps(
  deps: { readonly clock: Clock; readonly log: Log; readonly onEnd: () => void },
  signal: AbortSignal,
): Steps {
  const { clock, log } = deps
  const busy = new Map<Step['id'], { readonly abort: AbortController; readonly starting: ObservedRun | null }>()
  const running = new Set<Promise<void>>()

  const run = async ({ id, work }: Step, abort: AbortSignal): Promise<void> => {
    try {
      await work(abort)
    } catch (error) {
      // The driver has logged why a start failed.
      if (!(error instanceof StartError)) {
        log.warn({ error, id }, 'a step of the worker failed; it is repeated if it is still needed')
        await interruptibleSleep(clock, FAILED_STEP_PAUSE_MS, signal)
      }
    }
    busy.delete(id)
    deps.onEnd()
  }

  return {
    begin(step) {
      if (busy.has(step.id)) return
      const abort = new AbortController()
      busy.set(step.id, { abort, starting: step.starting })
      const work: Promise<void> = run(step, abort.signal).finally(() => running.delete(work))
      running.add(work)
    },
    cancelStart(id) {
      const step = busy.get(id)
      if (step !== undefined && step.starting !== null) step.abort.abort(new Error('the run is no longer desired'))
    },
    startingRuns: () => [...busy.values()].map(({ starting }) => starting).filter((seen) => seen !== null),
    async waitUntilIdle(limitMs) {
      await waitAtMost(clock, limitMs, Promise.all(running))
    },
  }
}
