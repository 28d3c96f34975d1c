import { hashSecret, isJoinToken, isServiceAccountToken } from '../../domain/orgs/api-key.ts'
import { asId, type WorkerId } from '../../domain/ids.ts'
import { UNBOUNDED, type AuthenticatedWorker } from '../../domain/workers/worker-bounds.ts'
import { isWorkerName, WORKER_NAME_RULE } from '../../domain/workers/worker.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as fleet from '../../store/workers/fleet.ts'
import * as workers from '../../store/workers/workers.ts'
import * as joinTokens from '../../store/workers/join-tokens.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'

/**
 * Registers the worker that this program starts and returns its id. Uses the worker with this credential, whatever its
 * name. Otherwise uses the worker with this name, which gets the credential. Otherwise creates a worker. May be
 * repeated.
 */
export async function registerWorker(
  deps: WriteDeps,
  input: { readonly name: string; readonly credential: string },
): Promise<WorkerId> {
  const id = asId<WorkerId>(deps.uuids.next())
  const worker = { id, name: input.name, credentialSha256: hashSecret(input.credential), now: deps.clock.now() }
  return deps.db.asSystem(async (q) => {
    const [known] = await workers.findByCredentials(q, [worker.credentialSha256])
    return known?.id ?? (await workers.register(q, worker))
  })
}

/**
 * Notes that the runs of a worker no longer go on without it: they are declared lost unless it reports within its lease. May be
 * repeated.
 */
export async function endRunsWithWorker({ db }: Pick<WriteDeps, 'db'>, worker: WorkerId): Promise<void> {
  await db.asSystem((q) => workers.endRunsWithWorker(q, worker))
}

/**
 * The worker of a credential, or null. Throws `worker_removed` for a removed worker. A worker that gets this refusal
 * destroys its runs, so only the owner of the credential may get it. `onUnknownCredential` is called before the look-up
 * among removed workers, and may throw.
 */
export async function authenticateWorker(
  deps: Pick<BaseDeps, 'db'> & WorkerFinder,
  credential: string,
  onUnknownCredential: () => void = () => undefined,
): Promise<AuthenticatedWorker | null> {
  const hash = hashSecret(credential)
  const worker = await deps.findWorker(hash)
  if (worker !== null) return worker
  onUnknownCredential()
  const removed = await deps.db.asSystem((q) => fleet.findByCredential(q, hash))
  if (removed === null || removed.removed_at === null) return null
  throw new Problem('worker_removed', {
    message: `the worker '${removed.name}' was removed at ${removed.removed_at.toISOString()}`,
  })
}

/**
 * Finds the worker of a credential. Concurrent look-ups share one statement. Resolves with null if the credential is
 * unknown or the worker was removed.
 */
export type WorkerFinder = {
  readonly findWorker: (credentialSha256: Buffer) => Promise<AuthenticatedWorker | null>
}

/** Makes the function that finds the workers of a process in batches. */
export function makeFindWorker({ db }: Pick<BaseDeps, 'db'>): WorkerFinder['findWorker'] {
  return makeBatch<Buffer, AuthenticatedWorker | null>({
    run: (hashes) => db.asSystem((q) => workers.findByCredentials(q, hashes)),
    groupOf: () => 'all',
    maxItems: 256,
    maxInFlight: 2,
  })
}

/** The request of a machine that wants to become a worker. */
export type JoinAttempt = {
  readonly token: string
  /** The machine generated the credential and keeps it. The hash can't be used in place of the credential. */
  readonly credentialSha256: Buffer
  /** The name that the operator chose, or null. */
  readonly name: string | null
  /** The name to use if neither the operator nor the token specifies one. */
  readonly fallbackName: string
}

/** The worker that a machine becomes when it joins. */
export type JoinedWorker = { readonly worker_id: WorkerId; readonly name: string }

/** A Pod whose service account may join. */
export type ReviewedPod = {
  /** The names that it may take as a worker: its own, and that of its node. */
  readonly names: readonly string[]
}

/** Asks Kubernetes whose token this is. Resolves with null if its service account may not join. Rejects if there is no answer. */
export type ReviewToken = (token: string) => Promise<ReviewedPod | null>

type JoinDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'log'> & {
  /** Absent: no service account may join. */
  readonly reviewToken?: ReviewToken
}

/**
 * Registers a machine as a worker, in exchange for an unused token. May be repeated with the same credential, in case
 * the answer was lost. Throws `invalid_join_token` for an unknown or expired token, and for a token that was used with
 * another credential. Throws `name_already_exists` for a name that another worker has, and `invalid_request` for a name
 * that no worker can have.
 */
export async function joinWorker(deps: JoinDeps, joining: JoinAttempt): Promise<JoinedWorker> {
  if (deps.reviewToken !== undefined && isServiceAccountToken(joining.token))
    return await joinPod(deps, await deps.reviewToken(joining.token), joining)
  if (!isJoinToken(joining.token))
    throw tokenProblem('the join token is incomplete or was changed: a token begins with syw_')
  const answer = await deps.db.transaction('system', async (tx) => {
    const token = await joinTokens.lock(tx, hashSecret(joining.token))
    if (token === null)
      throw tokenProblem('this control plane does not know the token, or it expired more than a day ago')
    if (token.worker_id !== null) return await answerRepeatedJoin(tx, token.worker_id, joining)
    const now = deps.clock.now()
    if (token.expires_at <= now) throw tokenProblem(`the token expired at ${token.expires_at.toISOString()}`)
    const joined = await admitWorker(deps, tx, { token, joining, now })
    await joinTokens.use(tx, token.id, { worker_id: joined.worker_id, now })
    return joined
  })
  deps.log.info({ ...answer }, 'a worker joined')
  return answer
}

/**
 * Registers a Pod as a worker. Kubernetes has vouched for it, so the token may be used again: by the same machine after a lost
 * answer, and by another Pod of the service account.
 */
async function joinPod(deps: JoinDeps, pod: ReviewedPod | null, joining: JoinAttempt): Promise<JoinedWorker> {
  if (pod === null)
    throw new Problem('invalid_join_token', {
      message:
        'the token is not one of a service account that may join (SANDYARD_JOIN_SERVICE_ACCOUNT), for the audience `sandyard`',
    })
  const name = joining.name ?? joining.fallbackName
  if (!pod.names.includes(name))
    throw refusalProblem({
      code: 'invalid_request',
      field: 'name',
      seen: name,
      accepted: pod.names.map((one) => `'${one}'`).join(' or '),
    })
  const answer = await deps.db.transaction('system', (tx) =>
    admitWorker(deps, tx, { token: { name: null, bounds: UNBOUNDED }, joining, now: deps.clock.now() }),
  )
  deps.log.info({ ...answer }, 'a worker joined by the token of its service account')
  return answer
}

/** Answers a repeated join. Only the machine that used a token may use it again. */
async function answerRepeatedJoin(
  tx: Queryable,
  worker_id: WorkerId,
  { credentialSha256 }: JoinAttempt,
): Promise<JoinedWorker> {
  const worker = await fleet.find(tx, worker_id)
  if (worker === null || !worker.credential_sha256.equals(credentialSha256))
    throw tokenProblem('the token has been used')
  if (worker.removed_at !== null) throw tokenProblem(`the worker '${worker.name}' that used the token was removed`)
  return { worker_id, name: worker.name }
}

type Admission = {
  readonly token: Pick<joinTokens.UsableToken, 'name' | 'bounds'>
  readonly joining: JoinAttempt
  readonly now: Date
}

async function admitWorker(deps: JoinDeps, tx: Queryable, { token, joining, now }: Admission): Promise<JoinedWorker> {
  const { credentialSha256 } = joining
  const known = await findJoined(tx, credentialSha256)
  if (known !== null) return known
  const name = token.name ?? joining.name ?? joining.fallbackName
  if (joining.name !== null && joining.name !== name)
    throw refusalProblem({
      code: 'invalid_request',
      field: 'name',
      seen: joining.name,
      accepted: `'${name}', which the token is for`,
    })
  if (!isWorkerName(name))
    throw refusalProblem({ code: 'invalid_request', field: 'name', seen: name, accepted: WORKER_NAME_RULE })
  const id = asId<WorkerId>(deps.uuids.next())
  if (await fleet.insert(tx, { id, name, credentialSha256, bounds: token.bounds, now })) return { worker_id: id, name }
  // Another request of this machine, with another token, may have joined since the look-up above.
  const meanwhile = await findJoined(tx, credentialSha256)
  if (meanwhile !== null) return meanwhile
  throw new Problem('name_already_exists', {
    message: `a worker named '${name}' exists: choose another name, or remove that one first (sandyard worker remove ${name})`,
  })
}

/** The worker that already has this credential, or null. */
async function findJoined(tx: Queryable, credentialSha256: Buffer): Promise<JoinedWorker | null> {
  const known = await fleet.findByCredential(tx, credentialSha256)
  return known?.removed_at === null ? { worker_id: known.id, name: known.name } : null
}

function tokenProblem(why: string): Problem {
  return new Problem('invalid_join_token', { message: `${why}: create one with \`sandyard worker token\`` })
}
