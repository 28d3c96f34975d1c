import type { Caller } from '../../domain/orgs/caller.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as events from '../../store/events/events.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import { makeBatchFailureCheck } from './batch-failures.ts'
import { transitionManyInTransaction, type TransitionDeps } from './transition.ts'

/** A sandbox that a caller deletes. */
export type Deletion = { readonly caller: Caller; readonly sandbox: Pick<Sandbox, 'id' | 'name' | 'slug'> }

/** What each removal of a batch was rejected with; null for one that is done. */
export type DeletionResult = { readonly error: unknown } | null

/**
 * Removes sandboxes in one transaction; if it fails, each in its own, so that a broken or locked row keeps no other from its
 * end. Rejects when the database can't be reached.
 */
export async function deleteBatch(
  deps: TransitionDeps,
  removals: readonly Deletion[],
): Promise<readonly DeletionResult[]> {
  const failsAll = makeBatchFailureCheck()
  const tried = async (some: readonly Deletion[]): Promise<DeletionResult> => {
    try {
      await deleteInOneTransaction(deps, some)
      return null
    } catch (error) {
      if (failsAll(error)) throw error
      return { error }
    }
  }
  const together = await tried(removals)
  if (together === null || removals.length === 1) return removals.map(() => together)
  const removed: DeletionResult[] = []
  for (const removal of removals) removed.push(await tried([removal]))
  return removed
}

async function deleteInOneTransaction(deps: TransitionDeps, removals: readonly Deletion[]): Promise<void> {
  const topics: string[] = []
  await deps.db.transaction('system', async (tx) => {
    topics.length = 0
    await deleteInTransaction(deps, { tx, topics }, removals)
  })
  deps.notifications.publish([...new Set(topics)])
}

/** The same within a transaction that does more; the caller publishes `topics` after the commit. */
export async function deleteInTransaction(
  deps: Pick<TransitionDeps, 'clock' | 'uuids'>,
  scope: { readonly tx: Queryable; readonly topics: string[] },
  removals: readonly Deletion[],
): Promise<void> {
  const { tx, topics } = scope
  const now = deps.clock.now()
  const byId = new Map(removals.map((removal) => [removal.sandbox.id, removal])) // twice at once is once
  const hidden = new Map((await sandboxes.hide(tx, [...byId.keys()], now)).map((one) => [one.id, one]))
  const ended = [...byId.keys()].filter((id) => !hidden.has(id))
  if (ended.length > 0) await sandboxes.hideNow(tx, ended, now)
  const fresh = [...byId.values()].filter(({ sandbox }) => hidden.has(sandbox.id))
  if (fresh.length > 0) {
    const stops = fresh.map(({ sandbox, caller }) => {
      const cause = { actor: caller.actor, code: 'deleted' } as const
      return { sandbox_id: sandbox.id, run_id: null, event: 'stop_requested', cause } as const
    })
    await transitionManyInTransaction(deps, scope, stops)
    await events.insertMany(
      tx,
      fresh.map(({ sandbox: { id, name, slug }, caller: { org_id, actor } }) => {
        const payload = { sandbox_id: id, name, slug }
        const event_type = 'sandbox_deleted'
        return { id: deps.uuids.next(), org_id, timestamp: now, event_type, sandbox_id: id, actor, payload }
      }),
    )
  }
  for (const id of byId.keys()) {
    const home = hidden.get(id)?.home_worker_id ?? null
    topics.push(`sandbox:${id}`, ...(home === null ? [] : [`worker:${home}`]))
  }
}
