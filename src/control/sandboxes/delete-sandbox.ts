import type { Caller } from '../../domain/orgs/caller.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import * as events from '../../store/events/events.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import { sandboxTopic, workerTopic } from '../topics.ts'
import { ifMatchPrecondition, type Conditions, type Precondition } from './if-match.ts'
import { getSummary, type SandboxReader, type SandboxRef } from './read-sandboxes.ts'
import { makeBatchFailureCheck } from './transitions/transition-batches.ts'
import {
  inTransitionScope,
  moveInTransaction,
  type TransactionScope,
  type TransitionDeps as DeleteDeps,
} from './transitions/transition.ts'

/** A caller's request to delete a sandbox. */
export type DeleteRequest = { readonly caller: Caller; readonly sandbox: Pick<Sandbox, 'id'> }

/** The result of a deletion: its error, or null if it succeeded. */
export type DeleteResult = { readonly error: unknown } | null

/** Deletes a sandbox in one transaction with concurrent deletions. */
export type SandboxDeleter = { readonly deleteInBatch: (deletion: DeleteRequest) => Promise<DeleteResult> }

/** Makes the function that deletes the sandboxes of a process in batches. */
export function makeDeleteInBatch(deps: DeleteDeps): SandboxDeleter['deleteInBatch'] {
  return makeBatch<DeleteRequest, DeleteResult>({
    run: (deletions) => deleteBatch(deps, deletions),
    groupOf: () => '',
    maxItems: 128,
    maxInFlight: 2,
  })
}

/**
 * Deletes a sandbox. Once the call resolves, the name and slug are free and no route shows the sandbox. A running
 * sandbox is asked to stop, and the call does not wait for the stop. Two concurrent deletions both succeed. Throws
 * `sandbox_not_found` and `precondition_failed`.
 */
export async function deleteSandbox(
  deps: DeleteDeps & SandboxReader & SandboxDeleter,
  caller: Caller,
  ref: SandboxRef,
  conditions: Conditions = {},
): Promise<void> {
  const sandbox = await getSummary(deps, caller, ref)
  const precondition = ifMatchPrecondition(sandbox, conditions)
  if (precondition !== null) {
    await deleteTogether(deps, [{ caller, sandbox }], precondition)
    return
  }
  const failed = await deps.deleteInBatch({ caller, sandbox })
  if (failed !== null) throw failed.error
}

/**
 * Deletes sandboxes in one transaction. If the transaction fails, each sandbox is deleted in a transaction of its own,
 * so that a broken or locked row blocks no other row. Rejects when the database can't be reached.
 */
export async function deleteBatch(
  deps: DeleteDeps,
  deletions: readonly DeleteRequest[],
): Promise<readonly DeleteResult[]> {
  const failsAll = makeBatchFailureCheck()
  const tryToDelete = async (some: readonly DeleteRequest[]): Promise<DeleteResult> => {
    try {
      await deleteTogether(deps, some)
      return null
    } catch (error) {
      if (failsAll(error)) throw error
      return { error }
    }
  }
  const result = await tryToDelete(deletions)
  if (result === null || deletions.length === 1) return deletions.map(() => result)
  const results: DeleteResult[] = []
  for (const deletion of deletions) results.push(await tryToDelete([deletion]))
  return results
}

/** Deletes sandboxes in one transaction, in which `precondition` is checked first. */
export async function deleteTogether(
  deps: DeleteDeps,
  deletions: readonly DeleteRequest[],
  precondition?: Precondition,
): Promise<void> {
  await inTransitionScope(deps, async (scope) => {
    await precondition?.(scope.tx)
    await deleteInTransaction(deps, scope, deletions)
  })
}

async function deleteInTransaction(
  deps: DeleteDeps,
  scope: TransactionScope,
  deletions: readonly DeleteRequest[],
): Promise<void> {
  const { tx, topics } = scope
  const now = deps.clock.now()
  const byId = new Map(deletions.map((deletion) => [deletion.sandbox.id, deletion])) // the same sandbox twice counts once
  const hidden = new Map((await sandboxes.hide(tx, [...byId.keys()], now)).map((one) => [one.id, one]))
  const alreadyHidden = [...byId.keys()].filter((id) => !hidden.has(id))
  if (alreadyHidden.length > 0) await sandboxes.hideNow(tx, alreadyHidden, now)
  const deleted = [...byId.values()].flatMap(({ caller, sandbox }) => {
    const one = hidden.get(sandbox.id)
    return one === undefined ? [] : [{ caller, sandbox: one }]
  })
  if (deleted.length > 0) {
    const stops = deleted.map(({ sandbox, caller }) => {
      const cause = { actor: caller.actor, code: 'deleted' } as const
      return { sandbox_id: sandbox.id, run_id: null, event: 'stop_requested', cause } as const
    })
    await moveInTransaction(deps, scope, stops)
    const told = deleted.map(({ sandbox: { id, name, slug }, caller: { org_id, actor } }) => {
      const payload = { sandbox_id: id, name, slug }
      const event_type = 'sandbox_deleted'
      return { id: deps.uuids.next(), org_id, timestamp: now, event_type, sandbox_id: id, actor, payload } as const
    })
    await events.insertMany(tx, told)
    scope.events.push(...told)
  }
  for (const id of byId.keys()) {
    const home = hidden.get(id)?.home_worker_id ?? null
    topics.push(sandboxTopic(id), ...(home === null ? [] : [workerTopic(home)]))
  }
}
