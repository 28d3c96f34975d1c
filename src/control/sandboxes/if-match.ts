import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { TransitionDeps } from './transition.ts'

/**
 * Holds a sandbox as a request demands it to be until the transaction ends, so that of two changes with one demand one is
 * refused: `precondition_failed`. Throws `sandbox_not_found`. Nothing is done without a demand.
 */
export async function lockIfMatch(
  tx: Queryable,
  { org_id, id }: Pick<Sandbox, 'org_id' | 'id'>,
  ifMatch: IfMatch | null,
): Promise<void> {
  if (ifMatch === null) return
  const locked = await sandboxes.lock(tx, org_id, id)
  if (locked === null) throw new Problem('sandbox_not_found')
  requireMatch(ifMatch, etagOf(renderSandbox(locked)))
}

/** What a transition stands on, with the demand checked within its transaction. */
export function withIfMatch<Deps extends TransitionDeps>(
  deps: Deps,
  sandbox: Pick<Sandbox, 'org_id' | 'id'>,
  ifMatch: IfMatch | null,
): TransitionDeps {
  return ifMatch === null ? deps : { ...deps, fence: (tx) => lockIfMatch(tx, sandbox, ifMatch) }
}
