import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import { renderSandbox, type SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { TransitionDeps } from './transition.ts'

/**
 * Locks a sandbox until the transaction ends and checks its entity tag. Of two concurrent changes with the same
 * `If-Match`, the second is refused with `precondition_failed`. Throws `sandbox_not_found`. Does nothing if the request
 * has no `If-Match`.
 */
export async function lockIfMatch(tx: Queryable, { org_id, id }: SandboxKey, ifMatch: IfMatch | null): Promise<void> {
  if (ifMatch === null) return
  const locked = await sandboxes.lock(tx, org_id, id)
  if (locked === null) throw new Problem('sandbox_not_found')
  requireMatch(ifMatch, etagOf(renderSandbox(locked)))
}

/** Adds the `If-Match` check to each transaction of a transition. */
export function withIfMatch<Deps extends TransitionDeps>(
  deps: Deps,
  sandbox: SandboxKey,
  ifMatch: IfMatch | null,
): TransitionDeps {
  return ifMatch === null ? deps : { ...deps, fence: (tx) => lockIfMatch(tx, sandbox, ifMatch) }
}
