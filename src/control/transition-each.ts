import type { Log } from '../lib/log.ts'
import { isUnavailable, type Queryable } from '../store/database.ts'
import { transition, type Transition, type TransitionDeps } from './transition.ts'

/**
 * Moves many sandboxes, one after another. One that can't be moved is logged and does not keep the others from it:
 * otherwise a single broken row would stop every loop that meets it. Answers how many could not. Rejects when the
 * database can't be reached, with the signal's reason when it is aborted, and with what `deps.fence` rejects with.
 */
export async function transitionEach(
  deps: TransitionDeps & { readonly log: Log },
  requests: readonly Transition[],
  signal?: AbortSignal,
): Promise<number> {
  let failed = 0
  let isFenced = false
  const { fence } = deps
  const fenced = async (tx: Queryable): Promise<void> => {
    isFenced = true
    await fence?.(tx)
    isFenced = false
  }
  for (const request of requests) {
    signal?.throwIfAborted()
    try {
      await transition({ ...deps, fence: fenced }, request)
    } catch (error) {
      if (isFenced || isUnavailable(error)) throw error
      failed += 1
      const { sandbox_id, event } = request
      deps.log.error({ error, sandbox_id, event }, 'a sandbox could not be moved; it is tried again')
    }
  }
  return failed
}
