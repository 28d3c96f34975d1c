import type { Caller } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import { totalBytes } from '../../lib/streams/buffer-pieces.ts'
import { UnsealError } from '../../lib/seal.ts'
import * as idempotency from '../../store/requests/idempotency.ts'
import type { Semaphore } from '../../lib/turns/semaphore.ts'
import { CLAIM_MS, KEYS_PER_ORG_MAX, type IdempotencyClaims } from './idempotency-claims.ts'
import { parseLargeReply, parseReply, sealReply, type LargeStoredReply, type StoredReply } from './stored-reply.ts'
import type { BaseDeps, ControlSettings } from '../deps.ts'

/** How long the reply of a key is stored if no setting says otherwise, in milliseconds. */
const REPLY_STORED_MS = 24 * 60 * 60 * 1000
/** The expiry of keys that are kept for ever. */
const NEVER = new Date('9999-12-31T00:00:00Z')
/** How long a request waits while another request with its key is being served, in milliseconds. */
const IN_USE_WAIT_MS = 10_000
const FIRST_RETRY_MS = 50
const LAST_RETRY_MS = 500
/** The `Retry-After` of a request whose key is in use. After this time the other request is usually done. */
const RETRY_AFTER_SECS = 1

type Deps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'seal' | 'log'> & {
  readonly waitPermits: Semaphore
  readonly idempotencyClaims: IdempotencyClaims
  readonly settings: Pick<ControlSettings, 'idempotencyKeptMs'>
}

/**
 * One attempt at a request with an `Idempotency-Key`. An earlier attempt that ended without a reply may have done all
 * of the request, or nothing. To do its work only once, a use case creates its object with the id `resourceId`, or
 * saves a note in the transaction of its change.
 */
export type IdempotentAttempt = {
  /** The id for the object that the request creates. It is chosen before the first attempt. */
  readonly resourceId: string
  /** Whether there was an earlier attempt. */
  readonly isRetry: boolean
  /** The note that an earlier attempt saved, or null. */
  readonly savedNote: string | null
  /**
   * Saves a note about the work, in the transaction that does the work. Rejects with `idempotency_key_in_use` when
   * another attempt has claimed the key.
   */
  saveNote(tx: Queryable, what: string): Promise<void>
}

/** The problem for a retry whose first attempt did, or may have done, the work, but whose reply is lost. */
export function idempotencyReplyLost(why: string): Problem {
  return new Problem('idempotency_reply_lost', {
    message: `the reply to this request was lost: ${why}`,
    details: { field: 'idempotency-key', seen: why, accepted: 'another key, once you have checked what was done' },
  })
}

/**
 * A request with a key. The hash covers every part that must be equal for two requests to count as the same.
 * `beforeLarge` is called before a large stored reply is read. If it throws, that is not read.
 */
export type KeyedRequest = {
  readonly key: string
  readonly request_sha256: Buffer
  readonly signal: AbortSignal
  readonly beforeLarge?: () => void
}

/**
 * How an attempt ended. `replied`: with a final reply, which is stored. `given_up`: with a reply that is not stored, so
 * that a retry serves the request again. `nothing_done`: before anything changed, so that the key counts as new.
 */
export type AttemptEnd =
  | { readonly kind: 'replied'; readonly reply: StoredReply; readonly encodedBody?: readonly Buffer[] | undefined }
  | { readonly kind: 'given_up' }
  | { readonly kind: 'nothing_done' }

/** `replay`: send the stored reply. `serve`: serve this attempt, and call `end` in every case. */
export type ClaimedKey =
  | { readonly kind: 'replay'; readonly reply: StoredReply | LargeStoredReply }
  | { readonly kind: 'serve'; readonly attempt: IdempotentAttempt; readonly end: (how: AttemptEnd) => Promise<void> }

/**
 * Claims the key of a request, so that the request is served once. If any process is serving a request with the same
 * key, the call waits for that request. Throws `idempotency_key_reused` if the key belongs to another request, and
 * `idempotency_key_in_use` if the wait takes too long. Throws `idempotency_reply_lost` if the stored reply or note
 * can't be unsealed, and `rate_limited` if the organization has too many keys.
 */
export async function claimIdempotencyKey(deps: Deps, { org_id }: Caller, request: KeyedRequest): Promise<ClaimedKey> {
  const { key, request_sha256, signal, beforeLarge } = request
  const context = `idempotency ${org_id} ${key}`
  if (!(await deps.idempotencyClaims.isBelowKeyLimit(org_id)) && !(await isKnown(deps, org_id, key)))
    throw tooManyKeys()
  const tryOnce = async (): Promise<ClaimedKey | null> => {
    const now = deps.clock.now()
    const ref = { org_id, key, claim: deps.uuids.next() }
    const claimed_until = new Date(now.getTime() + CLAIM_MS)
    const expires_at = expiryOf(deps.settings, now)
    const newClaim = { ...ref, request_sha256, id: deps.uuids.next(), claimed_until, now, expires_at }
    const [claimed, known] = await deps.db.asOrg(org_id, async (q) => {
      const claim = await idempotency.claim(q, newClaim)
      return [claim, claim === null ? await idempotency.find(q, org_id, key) : null] as const
    })
    if (claimed !== null) return await beginAttempt(deps, { ref, claimed, context })
    if (known === null) return null // the key was deleted between the two statements
    if (!known.request_sha256.equals(request_sha256)) throw reused()
    const reply = await readReply(deps, ref, { known, context, beforeLarge })
    return reply === null ? null : { kind: 'replay', reply }
  }
  return (await tryOnce()) ?? (await waitForClaim(deps, tryOnce, signal))
}

function expiryOf({ idempotencyKeptMs = REPLY_STORED_MS }: Deps['settings'], now: Date): Date {
  return idempotencyKeptMs === null ? NEVER : new Date(now.getTime() + idempotencyKeptMs)
}

async function isKnown({ db }: Deps, org: OrgId, key: string): Promise<boolean> {
  return (await db.asOrg(org, (q) => idempotency.find(q, org, key))) !== null
}

async function waitForClaim(
  deps: Deps,
  tryOnce: () => Promise<ClaimedKey | null>,
  signal: AbortSignal,
): Promise<ClaimedKey> {
  const release = deps.waitPermits.tryAcquire()
  if (release === null) throw inUse()
  const deadlineMs = deps.clock.monotonicMs() + IN_USE_WAIT_MS
  try {
    for (let pauseMs = FIRST_RETRY_MS; ; pauseMs = Math.min(pauseMs * 2, LAST_RETRY_MS)) {
      if (signal.aborted || deps.clock.monotonicMs() >= deadlineMs) throw inUse()
      await deps.clock.sleep(pauseMs)
      const claimed = await tryOnce()
      if (claimed !== null) return claimed
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
  const savedNote = await openSavedNote(deps, { ref, claimed, context })
  const release = deps.idempotencyClaims.keepRenewed(ref) // nothing may throw between this line and the return of `end`
  const attempt: IdempotentAttempt = {
    resourceId: claimed.id,
    isRetry: claimed.tries > 1,
    savedNote,
    async saveNote(tx: Queryable, what: string) {
      if (!(await idempotency.recordNote(tx, ref, deps.seal.seal(what, context)))) throw inUse()
    },
  }
  return {
    kind: 'serve',
    attempt,
    async end(how) {
      try {
        await deps.db.commitStatement(ref.org_id, await statementOf(deps, { ref, context }, how))
      } catch (error) {
        // The client still gets the reply. The claim expires, and a retry finds the work of this attempt.
        deps.log.warn({ error }, 'could not store the result of a request with an Idempotency-Key')
      } finally {
        release()
      }
    },
  }
}

/**
 * Reads the note of an earlier attempt. If the note can't be unsealed, releases the claim, so that a retry need not
 * wait until the claim expires.
 */
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
    return refuseUnreadable(deps, error)
  }
}

function refuseUnreadable(deps: Deps, error: unknown): never {
  if (!(error instanceof UnsealError)) throw error
  deps.idempotencyClaims.logUnreadable(error)
  throw idempotencyReplyLost('it was sealed with a key that this server does not have')
}

type KnownReply = {
  readonly known: idempotency.StoredRequest
  readonly context: string
  readonly beforeLarge: KeyedRequest['beforeLarge']
}

/**
 * Reads and opens a stored reply, a large one in several turns of the event loop. PostgreSQL sends bytes as digits: 4 MiB at once took 15 ms
 * (2026-11). Null: there is none, or none any more.
 */
async function readReply(
  deps: Deps,
  ref: idempotency.ClaimKey,
  { known, context, beforeLarge }: KnownReply,
): Promise<StoredReply | LargeStoredReply | null> {
  const { reply_sealed: first, reply_bytes } = known
  if (first === null) return null
  if (first.length === reply_bytes) return parseReply(openSealed(deps, first, context))
  const parts = [first]
  for (let from = first.length; from < (reply_bytes ?? 0); from = totalBytes(parts)) {
    const part = await deps.db.asOrg(ref.org_id, (q) => {
      beforeLarge?.()
      return idempotency.findReplyPart(q, ref, from)
    })
    if (part === null || part.length === 0) return null
    parts.push(part)
  }
  return parseLargeReply(
    await deps.seal.openInTurns(parts, context).catch((error: unknown) => refuseUnreadable(deps, error)),
  )
}

async function statementOf(deps: Deps, { ref, context }: Omit<NewAttempt, 'claimed'>, how: AttemptEnd) {
  switch (how.kind) {
    case 'replied':
      return idempotency.storeReply(ref, await sealReply(deps.seal, how, context))
    case 'given_up':
      return idempotency.releaseClaim(ref, deps.clock.now())
    case 'nothing_done':
      return idempotency.deleteClaim(ref)
  }
}

function reused(): Problem {
  return new Problem('idempotency_key_reused', {
    details: { field: 'idempotency-key', seen: 'the key of another request', accepted: 'a new key for each request' },
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
    message: `too many requests: an organization has at most ${String(KEYS_PER_ORG_MAX)} keys that are remembered, with 1 GiB of replies; ${how_to_change}`,
    details: { limit: 'idempotency_keys', max: KEYS_PER_ORG_MAX, how_to_change },
    retryAfterSeconds: 60,
  })
}
