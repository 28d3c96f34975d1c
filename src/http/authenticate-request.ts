import { includesScope, type Caller, type Scope } from '../domain/caller.ts'
import { Problem } from '../domain/problem.ts'
import type { UseCases } from './use-cases.ts'

/** RFC 6750, 2.1. The bound is far above the length of a key. */
const BEARER = /^bearer +([A-Za-z0-9._~+/=-]{1,512}) *$/i

/** Who sent a request, by its `authorization` header. Throws `invalid_api_key` for a header that names nobody. */
export async function authenticateRequest(
  useCases: Pick<UseCases, 'authenticate'>,
  header: string | undefined,
): Promise<Caller> {
  const key = BEARER.exec(header ?? '')?.[1]
  const caller = key === undefined ? null : await useCases.authenticate(key)
  if (caller === null) throw new Problem('invalid_api_key')
  return caller
}

/** Refuses a caller whose key lacks the scope that an operation needs: `forbidden`, naming it. */
export function requireScope(caller: Caller, needed: Scope | 'none'): void {
  if (needed === 'none' || includesScope(caller.scope, needed)) return
  throw new Problem('forbidden', {
    message: `forbidden: this needs an API key with the scope ${needed}; yours has ${caller.scope}`,
    details: { field: 'scope', seen: caller.scope, accepted: needed },
  })
}
