import type { Log } from '../../lib/log.ts'
import { transitionBatch, type Transition, type TransitionDeps } from './transition.ts'

/** What moves in one transaction at most: its sandboxes are locked as long as it takes. */
const BATCH_MAX = 128

/**
 * Moves many sandboxes, many in a transaction. One that can't be moved is logged and does not keep the others from it:
 * otherwise a single broken row would stop every loop that meets it. Answers how many could not. Rejects when the
 * database can't be reached, with the signal's reason when it is aborted, and with what `deps.fence` rejects with.
 */
export async function transitionAll(
  deps: TransitionDeps & { readonly log: Log },
  requests: readonly Transition[],
  signal?: AbortSignal,
): Promise<number> {
  let failed = 0
  for (let from = 0; from < requests.length; from += BATCH_MAX) {
    signal?.throwIfAborted()
    const some = requests.slice(from, from + BATCH_MAX)
    const settled = await transitionBatch(deps, some)
    settled.forEach((one, index) => {
      if (!('error' in one)) return
      failed += 1
      const { error } = one
      const { sandbox_id, event } = some[index] ?? {}
      deps.log.error({ error, sandbox_id, event }, 'a sandbox could not be moved; it is tried again')
    })
  }
  return failed
}
