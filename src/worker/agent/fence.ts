import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { WorkerRemoved } from './control-plane.ts'
import type { RenewDeadline } from './renew-deadline.ts'

type Destroy = (options: { readonly keepsEnded: boolean }) => Promise<number>

/** Destroys a worker's runs before the control plane declares them lost, and after the worker was removed. */
export type Fence = {
  /** Whether this worker must destroy its runs and start none. */
  isActive(): boolean
  /** Records the error of a failed sync. */
  noteFailure(error: unknown): void
  /**
   * While the fence is active, calls `destroy` repeatedly to destroy all runs. `destroy` returns how many runs are left. It keeps
   * the records of ended runs unless the worker was removed: nobody else knows how they ended.
   * Resolves when the signal aborts. Rejects with `WorkerRemoved` once a removed worker has no run left.
   */
  enforce(destroy: Destroy, signal: AbortSignal): Promise<void>
}

/** How often the worker checks whether it must fence itself. */
const CHECK_MS = 1_000

const WHY = 'no sync for too long: this worker destroys its runs before they are declared lost'

type FenceDeps = {
  readonly renewDeadline: RenewDeadline
  readonly fencesItself: boolean
  readonly clock: Clock
  readonly log: Log
}

/** Creates the fence for one process of a worker. */
export function makeFence({ renewDeadline, fencesItself, clock, log }: FenceDeps): Fence {
  let removed: WorkerRemoved | null = null
  /**
   * Stays true until no run is left, even if an answer renews the deadline meanwhile. That answer may desire a run that
   * is already half destroyed.
   */
  let isDestroying = false
  const isActive = (): boolean => removed !== null || isDestroying || (fencesItself && renewDeadline.hasPassed())
  return {
    isActive,
    noteFailure(error) {
      if (error instanceof WorkerRemoved) removed ??= error
    },
    async enforce(destroy, signal) {
      while (!signal.aborted) {
        await interruptibleSleep(clock, CHECK_MS, signal)
        if (signal.aborted || !isActive()) continue
        const isNew = !isDestroying
        isDestroying = true
        const left = await destroy({ keepsEnded: removed === null })
        if (left > 0 && isNew) log.error({ runs: left }, removed?.message ?? WHY)
        if (left > 0) continue
        if (removed !== null) throw removed
        isDestroying = false
      }
    },
  }
}
