import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { WorkerRemoved } from './control-plane.ts'
import type { RenewDeadline } from './renew-deadline.ts'

/** Keeps a worker from holding runs that may be declared lost: see `RenewDeadline` and `WorkerRemoved`. */
export type Fence = {
  /** Whether this worker may hold no runs. */
  isActive(): boolean
  /** Notes that a sync failed, and why. */
  noteFailure(error: unknown): void
  /**
   * While the fence is active, has all runs destroyed, repeatedly; `destroy` returns how many are left. Resolves at the signal.
   * Rejects with `WorkerRemoved` once a removed worker has no run left.
   */
  enforce(destroy: () => Promise<number>, signal: AbortSignal): Promise<void>
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

/** Makes the fence of one incarnation of a worker. */
export function makeFence({ renewDeadline, fencesItself, clock, log }: FenceDeps): Fence {
  let removed: WorkerRemoved | null = null
  /** True until no run is left: an answer in between may desire a run that is half destroyed. */
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
        const left = await destroy()
        if (left > 0 && isNew) log.error({ runs: left }, removed?.message ?? WHY)
        if (left > 0) continue
        if (removed !== null) throw removed
        isDestroying = false
      }
    },
  }
}
