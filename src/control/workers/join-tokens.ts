import { formatJoinToken, hashSecret } from '../../domain/orgs/api-key.ts'
import type { WorkerBounds } from '../../domain/workers/worker-bounds.ts'
import { isWorkerName, WORKER_NAME_RULE } from '../../domain/workers/worker.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import * as joinTokens from '../../store/workers/join-tokens.ts'
import type { BaseDeps } from '../deps.ts'

/** How long a join token is valid by default, in milliseconds. */
export const DEFAULT_TOKEN_LIFETIME_MS = 24 * 3_600_000

/** A new token. Its text is not stored and can't be read again. */
export type CreatedJoinToken = joinTokens.JoinToken & { readonly token: string }

/**
 * Creates a token with which one machine may join as a worker, under `name` if given. The worker may claim at most
 * `bounds`. With `pin`, it only joins a server with that public key (SHA-256, in hex). Only operators call it. Throws
 * `invalid_request` for a name that no worker can have, and for shared volumes together with chosen organizations: a
 * shared storage has the volumes of all organizations.
 */
export async function createJoinToken(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'random' | 'uuids' | 'log'>,
  input: {
    readonly name: string | null
    readonly lifeMs: number
    readonly bounds: WorkerBounds
    readonly pin?: string | null
  },
): Promise<CreatedJoinToken> {
  const { name, lifeMs, bounds, pin = null } = input
  if (name !== null && !isWorkerName(name))
    throw refusalProblem({ code: 'invalid_request', field: 'name', seen: name, accepted: WORKER_NAME_RULE })
  if (bounds.shared_volumes && bounds.org_ids !== null)
    throw refusalProblem({
      code: 'invalid_request',
      field: 'shared_volumes',
      seen: 'true, with chosen organizations',
      accepted: 'shared volumes or chosen organizations: a shared storage has the volumes of all organizations',
    })
  const token = formatJoinToken(deps.random.bytes(32), pin)
  const created_at = deps.clock.now()
  const expires_at = new Date(created_at.getTime() + lifeMs)
  const row = { id: deps.uuids.next(), name, bounds, created_at, expires_at }
  await deps.db.asSystem((q) => joinTokens.insert(q, { ...row, secretSha256: hashSecret(token) }))
  deps.log.info({ token_id: row.id, name, bounds, expires_at }, 'a join token was created')
  return { ...row, token }
}
