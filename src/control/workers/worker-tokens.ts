import { formatJoinToken, hashSecret } from '../../domain/orgs/api-key.ts'
import { isWorkerName, WORKER_NAME_RULE } from '../../domain/workers/worker.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import * as workerTokens from '../../store/workers/worker-tokens.ts'
import type { BaseDeps } from '../deps.ts'

/** How long a join token is valid by default, in milliseconds. */
export const DEFAULT_TOKEN_LIFETIME_MS = 24 * 3_600_000

/** A new token. Its text is not stored and can't be read again. */
export type CreatedWorkerToken = workerTokens.WorkerToken & { readonly token: string }

/**
 * Creates a token with which one machine may join as a worker, under `name` if given. Only operators call it. Throws
 * `invalid_request` for a name that no worker can have.
 */
export async function createWorkerToken(
  deps: Pick<BaseDeps, 'db' | 'clock' | 'random' | 'uuids' | 'log'>,
  input: { readonly name: string | null; readonly lifeMs: number },
): Promise<CreatedWorkerToken> {
  const { name, lifeMs } = input
  if (name !== null && !isWorkerName(name))
    throw refusalProblem({ code: 'invalid_request', field: 'name', seen: name, accepted: WORKER_NAME_RULE })
  const token = formatJoinToken(deps.random.bytes(32))
  const created_at = deps.clock.now()
  const expires_at = new Date(created_at.getTime() + lifeMs)
  const row = { id: deps.uuids.next(), name, created_at, expires_at }
  await deps.db.asSystem((q) => workerTokens.insert(q, { ...row, secretSha256: hashSecret(token) }))
  deps.log.info({ token_id: row.id, name, expires_at }, 'a join token was made')
  return { ...row, token }
}
