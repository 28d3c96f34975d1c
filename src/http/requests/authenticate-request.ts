import type { FastifyRequest } from 'fastify'
import { authenticate } from '../../control/orgs/authenticate.ts'
import type { Access } from '../../contract/operation.ts'
import { includesScope, type Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import { rateLimitAddress } from '../../lib/rate-limit-address.ts'
import type { CallUseCase } from './call-use-case.ts'
import type { ClientAddresses } from './client-address.ts'
import type { RequestLimits } from './request-limits.ts'

/** The syntax of RFC 6750, section 2.1. The limit of 512 is far above the length of a key. */
const BEARER = /^bearer +([A-Za-z0-9._~+/=-]{1,512}) *$/i

export type AuthenticateDeps = {
  readonly call: CallUseCase
  /** Absent: failed authentications are not limited. */
  readonly limits?: Pick<RequestLimits, 'rates'>
}

/** The client's address and the `authorization` header of a request. */
export type Sender = { readonly authorization: string | undefined; readonly address: string | undefined }

/** Reads the address and the `authorization` header of an HTTP request. */
export function senderOf(clients: ClientAddresses, { headers, raw }: FastifyRequest): Sender {
  return { authorization: headers.authorization, address: clients.of(raw) }
}

/**
 * Authenticates a request and returns its caller. Throws `invalid_api_key` if the key is missing or unknown. Throws
 * `rate_limited` if the key is not cached and the sender's address had too many failed authentications. Such a key is
 * not looked up in the database, so guessing keys doesn't slow down other callers.
 */
export async function authenticateRequest({ call, limits }: AuthenticateDeps, sender: Sender): Promise<Caller> {
  const key = BEARER.exec(sender.authorization ?? '')?.[1]
  const caller =
    key === undefined
      ? null
      : await call(authenticate, key, () => limits?.rates.checkFailedAuthentications(rateLimitAddress(sender.address)))
  if (caller !== null) return caller
  limits?.rates.countFailedAuthentication(rateLimitAddress(sender.address))
  throw new Problem('invalid_api_key')
}

/** Throws `forbidden` if the caller's key lacks what the operation needs. */
export function requireScope(caller: Caller, needed: Access): void {
  if (mayUse(caller, needed)) return
  const reason = needed === 'operator' ? '; only the sandyard command makes such keys' : ''
  throw new Problem('forbidden', {
    message: `forbidden: this needs an API key with the scope ${needed}; yours has ${caller.scope}${reason}`,
    details: { field: 'scope', seen: caller.scope, accepted: needed },
  })
}

function mayUse({ scope, isOperator = false }: Caller, needed: Access): boolean {
  if (needed === 'none') return true
  return needed === 'operator' ? isOperator : includesScope(scope, needed)
}
