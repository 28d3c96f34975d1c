import type { ObservedRun } from '../../contract/workers/worker-protocol.ts'
import type { RunId, SandboxId, VolumeId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { StartError } from '../start-error.ts'

/** One thing to do with a run, a sandbox or a volume. */
export type Step = {
  readonly id: RunId | SandboxId | VolumeId
  /** For a start: how its run is reported until the driver lists it. */
  readonly starting: ObservedRun | null
  readonly work: (abort: AbortSignal) => Promise<void>
}

/** What a worker is doing: at most one step at a time for each run, sandbox and volume. */
export type Steps = {
  /** Begins a step, unless one is under way for the same id: its end has the runs observed again. */
  begin(step: Step): void
  /** Aborts a start that is under way; does nothing to any other step. */
  cancelStart(run: RunId): void
  /** The runs whose start is under way, whether or not the driver lists them yet. */
  startingRuns(): readonly ObservedRun[]
  /** Resolves when nothing is under way, or after `limitMs`. */
  waitUntilIdle(limitMs: number): Promise<void>
}

/** How long a failed step blocks its id: what fails at once must not be retried in a tight loop. */
const FAILED_STEP_PAUSE_MS = 500

/** Makes the steps of a worker. `onEnd` is called after each and must not throw. */
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
      if (error instanceof StartError) log.info({ id, reason: error.reason, err: error }, 'a start failed')
      else {
        log.warn({ error, id }, 'a step of the worker failed; the next look decides again')
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
      const settled = new AbortController()
      await Promise.race([Promise.all(running), interruptibleSleep(clock, limitMs, settled.signal)])
      settled.abort()
    },
  }
}
