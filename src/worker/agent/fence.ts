import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { WorkerRemoved } from './control-plane.ts'
import type { Lease } from './lease.ts'

/** Keeps a worker from holding runs that may be called lost: see `Lease` and `WorkerRemoved`. */
export type Fence = {
  /** Whether this worker may hold no runs. */
  isActive(): boolean
  /** Takes note of a sync that failed. */
  noteFailure(error: unknown): void
  /**
   * While the fence is up, has all runs destroyed, again and again; `destroy` answers how many are left. Resolves with the
   * signal, and rejects with `WorkerRemoved` once nothing is left of a worker that was removed.
   */
  enforce(destroy: () => Promise<number>, signal: AbortSignal): Promise<void>
}

/** How often the worker asks whether it must fence itself. */
const CHECK_MS = 1_000

const WHY = 'no sync for too long: this worker destroys its runs before they are called lost'

type FenceDeps = { readonly lease: Lease; readonly fencesItself: boolean; readonly clock: Clock; readonly log: Log }

/** Makes the fence of one life of a worker. */
export function makeFence({ lease, fencesItself, clock, log }: FenceDeps): Fence {
  let removed: WorkerRemoved | null = null
  /** From the moment on that runs are destroyed until none is left: an answer meanwhile may want what is half destroyed. */
  let isDestroying = false
  const isUp = (): boolean => removed !== null || isDestroying || (fencesItself && lease.isOver())
  return {
    isActive: isUp,
    noteFailure(error) {
      if (error instanceof WorkerRemoved) removed ??= error
    },
    async enforce(destroy, signal) {
      while (!signal.aborted) {
        await interruptibleSleep(clock, CHECK_MS, signal)
        if (signal.aborted || !isUp()) continue
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
