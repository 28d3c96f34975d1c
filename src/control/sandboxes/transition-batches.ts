import { makeBatch } from '../../lib/batch.ts'
import { isLockTimeout, isUnavailable, type Queryable } from '../../store/postgres/database.ts'
import type { BaseDeps } from '../deps.ts'
import {
  moveAlone,
  moveTogether,
  type TransitionResult,
  type TransitionAnswers,
  type TransitionDeps,
} from './transition.ts'
import type { TransitionRequest } from './transition-step.ts'

/** The most sandboxes that one transaction moves. The transaction locks them until it ends. */
const BATCH_MAX = 128

/** Makes the function that moves a sandbox in one transaction with concurrent requests. */
export function makeMoveQueue(
  deps: Omit<TransitionDeps, 'fence' | 'moveQueued'>,
): (request: TransitionRequest) => Promise<TransitionResult> {
  return makeBatch<TransitionRequest, TransitionResult>({
    run: (requests) => moveEach(deps, requests),
    groupOf: () => '',
    maxItems: BATCH_MAX,
    maxInFlight: 2,
  })
}

/**
 * Moves many sandboxes, up to `BATCH_MAX` in a transaction. A failure is logged and does not stop the others. Otherwise
 * a single broken row would block every loop that meets it. Resolves with the number of failures. Rejects when the
 * database can't be reached, when `deps.fence` rejects, and when the signal aborts, with its reason.
 */
export async function moveAll(
  deps: TransitionDeps & Pick<BaseDeps, 'log'>,
  requests: readonly TransitionRequest[],
  signal?: AbortSignal,
): Promise<number> {
  let failed = 0
  for (let from = 0; from < requests.length; from += BATCH_MAX) {
    signal?.throwIfAborted()
    const some = requests.slice(from, from + BATCH_MAX)
    const results = await moveEach(deps, some)
    results.forEach((result, index) => {
      if (!('error' in result)) return
      failed += 1
      const { sandbox_id, event } = some[index] ?? {}
      deps.log.error({ error: result.error, sandbox_id, event }, 'could not move a sandbox; will retry')
    })
  }
  return failed
}

/**
 * Moves many sandboxes in one transaction. Requests for the same sandbox run one after another, in their order. A
 * request that fails with others is retried alone, so that a broken row blocks no other row. Requests that lock volumes
 * always run alone, because a shared transaction would take those locks out of order. Rejects when the database can't
 * be reached, and when `deps.fence` rejects.
 */
export async function moveEach(
  deps: TransitionDeps,
  requests: readonly TransitionRequest[],
): Promise<readonly TransitionResult[]> {
  const results = new Map<TransitionRequest, TransitionResult>()
  let isFencing = false
  const fence = async (tx: Queryable): Promise<void> => {
    isFencing = true
    await deps.fence?.(tx)
    isFencing = false
  }
  const failsBatch = makeBatchFailureCheck()
  const failsAll = (error: unknown): boolean => isFencing || failsBatch(error)
  for (let left = requests; left.length > 0;) {
    const bySandbox = [...Map.groupBy(left, ({ sandbox_id }) => sandbox_id).values()]
    const firsts = bySandbox.flatMap((ofOne) => ofOne.slice(0, 1))
    const answers = await tryTogether({ ...deps, fence }, firsts, failsAll)
    for (const request of firsts) {
      const answer = answers.get(request)
      results.set(request, answer === undefined ? await tryAlone({ ...deps, fence }, request, failsAll) : { answer })
    }
    left = bySandbox.flatMap((ofOne) => ofOne.slice(1))
  }
  return requests.map((request) => results.get(request) ?? { error: new Error('a transition got no answer') })
}

/**
 * Runs requests for different sandboxes in one transaction and returns their answers. A request that must run alone
 * gets no answer.
 */
async function tryTogether(
  deps: TransitionDeps,
  requests: readonly TransitionRequest[],
  failsAll: (error: unknown) => boolean,
): Promise<TransitionAnswers> {
  if (requests.length === 1) return new Map()
  try {
    return await moveTogether(deps, requests)
  } catch (error) {
    if (failsAll(error)) throw error
    return new Map() // each request then runs alone, which finds the failing one
  }
}

async function tryAlone(
  deps: TransitionDeps,
  request: TransitionRequest,
  failsAll: (error: unknown) => boolean,
): Promise<TransitionResult> {
  try {
    return { answer: await moveAlone(deps, request) }
  } catch (error) {
    if (failsAll(error)) throw error
    return { error }
  }
}

/** After more lock timeouts than this in one batch, the lock is assumed to block everything, such as a lock on a table. */
const LOCK_TIMEOUTS_MAX = 2

/**
 * Makes a function that checks whether the error of one item fails the whole batch. It does if the database is
 * unavailable, or if too many items timed out waiting for a lock. Any other error affects its own item only.
 */
export function makeBatchFailureCheck(): (error: unknown) => boolean {
  let lockTimeouts = 0
  return (error) => isUnavailable(error) && (!isLockTimeout(error) || ++lockTimeouts > LOCK_TIMEOUTS_MAX)
}
