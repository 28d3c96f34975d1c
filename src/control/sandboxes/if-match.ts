import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import { renderSandbox, type SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'

/** A condition of a client, checked first in the transaction of the change. It rejects with the client's error. */
export type Precondition = (tx: Queryable) => Promise<void>

/** Returns the precondition that a request's `If-Match` states about a sandbox. Null if the request has no `If-Match`. */
export function ifMatchPrecondition(sandbox: SandboxKey, ifMatch: IfMatch | null): Precondition | null {
  return ifMatch === null ? null : (tx) => lockIfMatch(tx, sandbox, ifMatch)
}

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
