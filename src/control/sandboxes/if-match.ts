import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import { renderSandbox } from '../../domain/sandboxes/sandbox.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'

/** A condition of a client, checked first in the transaction of the change. It rejects with the client's error. */
export type Precondition = (tx: Queryable) => Promise<void>

/** What a request states about the sandbox that it changes. */
export type Conditions = {
  readonly ifMatch?: IfMatch | null
  /** Called with the bytes of the specification before all of it is read. If it throws, nothing is read or changed. */
  readonly beforeSpec?: (bytes: number) => void
}

/**
 * Returns the precondition that a request's `If-Match` states about a sandbox. Null if the request has no `If-Match`. It locks the
 * sandbox until the transaction ends: of two concurrent changes with the same `If-Match`, the second is refused with
 * `precondition_failed`. It throws `sandbox_not_found`. The entity tag is that of the whole specification.
 */
export function ifMatchPrecondition(
  { org_id, id, spec_bytes }: sandboxes.FoundSummary,
  { ifMatch = null, beforeSpec }: Conditions,
): Precondition | null {
  if (ifMatch === null) return null
  beforeSpec?.(spec_bytes ?? 0)
  return async (tx) => {
    const locked = await sandboxes.lock(tx, org_id, id)
    if (locked === null) throw new Problem('sandbox_not_found')
    requireMatch(ifMatch, etagOf(renderSandbox(locked)))
  }
}
