import { makeBatch } from '../../../lib/turns/batch.ts'
import { isLockTimeout, isUnavailable, type Queryable } from '../../../store/postgres/database.ts'
import type { BaseDeps, FenceDeps } from '../../deps.ts'
import {
  moveAlone,
  moveTogether,
  type TransactionGuards,
  type TransitionResult,
  type TransitionAnswers,
  type TransitionDeps,
} from './transition.ts'
import type { TransitionRequest } from './transition-step.ts'

/** The maximum number of sandboxes that one transaction moves. The transaction locks them until it ends. */
const BATCH_MAX = 128

/** Makes the function that moves a sandbox in one transaction with concurrent requests. */
export function makeMoveQueue(deps: TransitionDeps): (request: TransitionRequest) => Promise<TransitionResult> {
  return makeBatch<TransitionRequest, TransitionResult>({
    run: (requests) => moveEach(deps, requests),
    groupOf: () => '',
    maxItems: BATCH_MAX,
    maxInFlight: 2,
  })
}

/** The dependencies of loops that move sandboxes. */
export type MoveAllDeps = TransitionDeps & FenceDeps & Pick<BaseDeps, 'log'>

/**
 * Repeats the check by which the caller decided to move sandboxes, first in each transaction that moves them. This
 * process may have been paused since the check. Rejects if the check no longer holds.
 */
export type Recheck = (tx: Queryable) => Promise<void>

type MoveAllOptions = { readonly signal?: AbortSignal; readonly recheck?: Recheck }

/**
 * Moves many sandboxes, up to `BATCH_MAX` in a transaction. A request that fails is logged and does not stop the
 * others. Otherwise a single broken row would block every loop that moves its sandbox. Resolves with the number of
 * failures. Rejects when the database can't be reached, when the leader's fence or `recheck` rejects, and when the
 * signal aborts, with its reason.
 */
export async function moveAll(
  deps: MoveAllDeps,
  requests: readonly TransitionRequest[],
  { signal, recheck }: MoveAllOptions = {},
): Promise<number> {
  let failed = 0
  for (let from = 0; from < requests.length; from += BATCH_MAX) {
    signal?.throwIfAborted()
    const some = requests.slice(from, from + BATCH_MAX)
    const results = await moveEach(deps, some, recheck)
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
 * Moves many sandboxes in one transaction. Requests for the same sandbox run one after another, in their order. If the
 * transaction fails, each of its requests is repeated in a transaction of its own, so that a broken row blocks no other
 * row. Requests that lock volumes always run alone, because a shared transaction would take those locks out of order.
 * Rejects when the database can't be reached, and when the leader's fence or `recheck` rejects.
 */
export async function moveEach(
  deps: TransitionDeps & FenceDeps,
  requests: readonly TransitionRequest[],
  recheck?: Recheck,
): Promise<readonly TransitionResult[]> {
  const results = new Map<TransitionRequest, TransitionResult>()
  let isInGuard = false
  const guarded = (guard: Recheck | undefined): Recheck => {
    return async (tx) => {
      isInGuard = true
      await guard?.(tx)
      isInGuard = false
    }
  }
  const guards: TransactionGuards = {
    fence: guarded(deps.fence),
    ...(recheck === undefined ? {} : { first: guarded(recheck) }),
  }
  const failsBatch = makeBatchFailureCheck()
  const batch: BatchDeps = { ...deps, guards, failsAll: (error) => isInGuard || failsBatch(error) }
  for (let left = requests; left.length > 0;) {
    const bySandbox = [...Map.groupBy(left, ({ sandbox_id }) => sandbox_id).values()]
    const firsts = bySandbox.flatMap((ofOne) => ofOne.slice(0, 1))
    const answers = await tryTogether(batch, firsts)
    for (const request of firsts) {
      const answer = answers.get(request)
      results.set(request, answer === undefined ? await tryAlone(batch, request) : { answer })
    }
    left = bySandbox.flatMap((ofOne) => ofOne.slice(1))
  }
  return requests.map((request) => results.get(request) ?? { error: new Error('a transition got no answer') })
}

type BatchDeps = TransitionDeps & {
  readonly guards: TransactionGuards
  /** Whether an error fails the whole batch, and not only its own item. */
  readonly failsAll: (error: unknown) => boolean
}

/**
 * Runs requests for different sandboxes in one transaction and returns their answers. A request without an answer must
 * still run alone. If the transaction fails, that is all of them.
 */
async function tryTogether(batch: BatchDeps, requests: readonly TransitionRequest[]): Promise<TransitionAnswers> {
  if (requests.length === 1) return new Map()
  try {
    return await moveTogether(batch, requests, batch.guards)
  } catch (error) {
    if (batch.failsAll(error)) throw error
    return new Map() // each request then runs alone, which finds the failing one
  }
}

async function tryAlone(batch: BatchDeps, request: TransitionRequest): Promise<TransitionResult> {
  try {
    return { answer: await moveAlone(batch, request, batch.guards) }
  } catch (error) {
    if (batch.failsAll(error)) throw error
    return { error }
  }
}

/**
 * If more items of a batch than this time out waiting for a lock, the lock is assumed to block all items. A lock on a
 * table does so.
 */
const LOCK_TIMEOUTS_MAX = 2

/**
 * Makes a function that returns whether the error of one item must end the whole batch. That is the case if the
 * database is unavailable, or if too many items timed out waiting for a lock. Any other error affects only its own
 * item.
 */
export function makeBatchFailureCheck(): (error: unknown) => boolean {
  let lockTimeouts = 0
  return (error) => isUnavailable(error) && (!isLockTimeout(error) || ++lockTimeouts > LOCK_TIMEOUTS_MAX)
}
