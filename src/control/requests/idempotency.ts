import type { Caller } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { UnsealError } from '../../lib/seal.ts'
import * as idempotency from '../../store/requests/idempotency.ts'
import { CLAIM_MS, KEYS_PER_ORG_MAX } from './idempotency-claims.ts'
import type { ControlDeps } from '../deps.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from './idempotent-attempt.ts'

/** How long a key's reply is remembered. */
const REMEMBERED_MS = 24 * 60 * 60 * 1000
/** How long a request waits for another one of its key that is being served. */
const IN_USE_WAIT_MS = 10_000
const FIRST_RETRY_MS = 50
const LAST_RETRY_MS = 500
/** Retries whose clients count on it know a claim to be over by then. */
const RETRY_AFTER_SECS = 1

type Deps = Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'seal' | 'waits' | 'claims' | 'log'>

/** A request under a key; the hash is over all that makes it the request that it is. */
export type KeyedRequest = { readonly key: string; readonly request_sha256: Buffer; readonly signal: AbortSignal }

/** A reply as it is given again. */
export type StoredReply = {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** How a try ended: with a reply for good, with one that may be another the next time, or before anything was done. */
export type AttemptEnd =
  | { readonly kind: 'replied'; readonly reply: StoredReply }
  | { readonly kind: 'given_up' }
  | { readonly kind: 'nothing_done' }

/** `again`: the reply of the request's first try. `serve`: this one is served, and must be ended, whatever happens. */
export type ClaimedKey =
  | { readonly kind: 'again'; readonly reply: StoredReply }
  | { readonly kind: 'serve'; readonly once: IdempotentAttempt; readonly end: (how: AttemptEnd) => Promise<void> }

/**
 * Says whether a request under a key is to be served or was. Another one of the same key that is being served, in whatever
 * process, is waited for. Throws `idempotency_key_reused` for another request, `idempotency_key_in_use` when the wait was
 * for nothing, `idempotency_reply_lost` when the first try's reply or note was sealed with a key that is lost, and
 * `rate_limited` when the organization has too many keys.
 */
export async function claimIdempotencyKey(deps: Deps, { org_id }: Caller, request: KeyedRequest): Promise<ClaimedKey> {
  const { key, request_sha256, signal } = request
  const context = `idempotency ${org_id} ${key}`
  if (!(await deps.claims.isBelowKeyLimit(org_id)) && !(await isKnown(deps, org_id, key))) throw tooManyKeys()
  const tryOnce = async (): Promise<ClaimedKey | null> => {
    const now = deps.clock.now()
    const ref = { org_id, key, claim: deps.uuids.next() }
    const claimed_until = new Date(now.getTime() + CLAIM_MS)
    const expires_at = new Date(now.getTime() + REMEMBERED_MS)
    const wanted = { ...ref, request_sha256, id: deps.uuids.next(), claimed_until, now, expires_at }
    const [claimed, known] = await deps.db.asOrg(org_id, async (q) => {
      const had = await idempotency.claim(q, wanted)
      return [had, had === null ? await idempotency.find(q, org_id, key) : null] as const
    })
    if (claimed !== null) return await beginAttempt(deps, { ref, claimed, context })
    if (known === null) return null // it was forgotten between the two statements
    if (!known.request_sha256.equals(request_sha256)) throw reused()
    return known.reply_sealed === null
      ? null
      : { kind: 'again', reply: parseReply(openSealed(deps, known.reply_sealed, context)) }
  }
  return (await tryOnce()) ?? (await waitForClaim(deps, tryOnce, signal))
}

async function isKnown({ db }: Deps, org: OrgId, key: string): Promise<boolean> {
  return (await db.asOrg(org, (q) => idempotency.find(q, org, key))) !== null
}

async function waitForClaim(
  deps: Deps,
  tryOnce: () => Promise<ClaimedKey | null>,
  signal: AbortSignal,
): Promise<ClaimedKey> {
  const release = deps.waits.tryAcquire()
  if (release === null) throw inUse()
  const deadlineMs = deps.clock.monotonicMs() + IN_USE_WAIT_MS
  try {
    for (let pauseMs = FIRST_RETRY_MS; ; pauseMs = Math.min(pauseMs * 2, LAST_RETRY_MS)) {
      if (signal.aborted || deps.clock.monotonicMs() >= deadlineMs) throw inUse()
      await deps.clock.sleep(pauseMs)
      const turn = await tryOnce()
      if (turn !== null) return turn
    }
  } finally {
    release()
  }
}

type NewAttempt = {
  readonly ref: idempotency.ClaimKey
  readonly claimed: idempotency.Claimed
  readonly context: string
}

async function beginAttempt(deps: Deps, { ref, claimed, context }: NewAttempt): Promise<ClaimedKey> {
  const noted = await openSavedNote(deps, { ref, claimed, context })
  const release = deps.claims.keepRenewed(ref) // from here on nothing throws before `end` is there
  const once: IdempotentAttempt = {
    id: claimed.id,
    isRetry: claimed.tries > 1,
    noted,
    async note(tx: Queryable, what: string) {
      if (!(await idempotency.recordNote(tx, ref, deps.seal.seal(what, context)))) throw inUse()
    },
  }
  return {
    kind: 'serve',
    once,
    async end(how) {
      try {
        await deps.db.commitStatement(ref.org_id, statementOf(deps, { ref, context }, how))
      } catch (error) {
        // The claim runs out, and the next try finds what was done: the reply that there is goes out all the same.
        deps.log.warn({ error }, 'how a request under an Idempotency-Key ended could not be remembered')
      } finally {
        release()
      }
    },
  }
}

/** What an earlier try noted. The claim of a try that can't read it is given up, so that the next one need not wait. */
async function openSavedNote(deps: Deps, { ref, claimed, context }: NewAttempt): Promise<string | null> {
  if (claimed.note === null) return null
  try {
    return openSealed(deps, claimed.note, context)
  } catch (error) {
    await deps.db.commitStatement(ref.org_id, idempotency.releaseClaim(ref, deps.clock.now()))
    throw error
  }
}

function openSealed(deps: Deps, sealed: Buffer, context: string): string {
  try {
    return deps.seal.open(sealed, context)
  } catch (error) {
    if (!(error instanceof UnsealError)) throw error
    deps.claims.logUnreadable(error)
    throw idempotencyReplyLost('it was sealed with another key than this server has')
  }
}

function statementOf(deps: Deps, { ref, context }: Omit<NewAttempt, 'claimed'>, how: AttemptEnd) {
  switch (how.kind) {
    case 'replied':
      return idempotency.storeReply(ref, deps.seal.seal(JSON.stringify(how.reply), context))
    case 'given_up':
      return idempotency.releaseClaim(ref, deps.clock.now())
    case 'nothing_done':
      return idempotency.deleteClaim(ref)
  }
}

function parseReply(text: string): StoredReply {
  return JSON.parse(text) as StoredReply // sealed by this program, and nobody else has the key
}

function reused(): Problem {
  return new Problem('idempotency_key_reused', {
    details: { field: 'idempotency-key', seen: 'the key of another request', accepted: 'a key for each request' },
  })
}

function inUse(): Problem {
  return new Problem('idempotency_key_in_use', {
    details: {
      field: 'idempotency-key',
      seen: 'the key of a request that is being served',
      accepted: 'the same later',
    },
    retryAfterSeconds: RETRY_AFTER_SECS,
  })
}

function tooManyKeys(): Problem {
  const how_to_change = 'use fewer keys, or send requests that may be repeated without one'
  return new Problem('rate_limited', {
    message: `too many requests: an organization has at most ${String(KEYS_PER_ORG_MAX)} keys of 24 hours; ${how_to_change}`,
    details: { limit: 'idempotency_keys', max: KEYS_PER_ORG_MAX, how_to_change },
    retryAfterSeconds: 60,
  })
}
