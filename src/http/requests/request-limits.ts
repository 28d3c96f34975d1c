import type { ServerResponse } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { makeConcurrencyLimit, type ConcurrencyLimit } from '../../control/requests/concurrency-limit.ts'
import {
  makeRequestRateLimiter,
  type RateLimits,
  type RateStatus,
  type RequestRateLimiter,
} from '../../control/requests/request-rate-limiter.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import type { Clock } from '../../lib/clock.ts'
import { ClientDisconnected, onResponseClose } from './request-signals.ts'

/** The limits of a server process on its callers' requests; docs/limits.md explains them. */
export type RequestLimitSettings = {
  readonly rates: RateLimits
  readonly orgRequestsInFlight: number
  readonly orgBodiesMib: number
  readonly bodiesMib: number
  readonly orgRepliesMib: number
}

/** Counters of the requests in progress, and of the request rates. */
export type RequestLimits = {
  readonly rates: RequestRateLimiter
  readonly inFlight: ConcurrencyLimit<OrgId>
  /** Bytes of JSON bodies that are arriving or being processed. */
  readonly bodyBytes: ConcurrencyLimit<OrgId>
  /** Bytes of large JSON replies that are being sent. */
  readonly replyBytes: ConcurrencyLimit<OrgId>
  readonly replyBytesMax: number
}

/**
 * The bytes of a body that count as one more request. To parse, check, render and store 4 MiB takes as long as some 500
 * requests: 60 ms of this process, and more of the database (2026-11).
 */
const BYTES_PER_TOKEN = 8 * 1024

/** The bytes of a JSON reply that count as one more request. Reading and rendering 1 MiB takes about 5 ms (2026-11). */
const REPLY_BYTES_PER_TOKEN = 64 * 1024

const MIB = 1024 * 1024

/** Creates the counters of a server process. */
export function makeRequestLimits(settings: RequestLimitSettings, clock: Pick<Clock, 'monotonicMs'>): RequestLimits {
  const inFlight = { name: 'org_requests_in_flight', variable: 'SANDYARD_ORG_REQUESTS_IN_FLIGHT' }
  const ofOrg = { name: 'org_body_bytes', variable: 'SANDYARD_ORG_BODIES_MIB', max: settings.orgBodiesMib * MIB }
  const ofAll = { name: 'body_bytes', variable: 'SANDYARD_BODIES_MIB', max: settings.bodiesMib * MIB }
  const replies = { name: 'org_reply_bytes', variable: 'SANDYARD_ORG_REPLIES_MIB', max: settings.orgRepliesMib * MIB }
  const keyOf = (org: OrgId): string => org
  return {
    rates: makeRequestRateLimiter(settings.rates, clock),
    inFlight: makeConcurrencyLimit(
      [{ ...inFlight, max: settings.orgRequestsInFlight, keyOf }],
      'send fewer requests at once',
    ),
    bodyBytes: makeConcurrencyLimit(
      [
        { ...ofOrg, keyOf },
        { ...ofAll, keyOf: () => 'all' },
      ],
      'send fewer or smaller bodies at once',
    ),
    replyBytes: makeConcurrencyLimit([{ ...replies, keyOf }], 'read the replies, or request fewer at once'),
    replyBytesMax: replies.max,
  }
}

/**
 * Counts a request against its caller's limits until the reply is sent. Throws `rate_limited` above a limit. Call it
 * before the body is read. With `takesJson`, the bytes of the body count as well. A body of unknown length counts as
 * the longest allowed body.
 */
export function enforceRequestLimits(
  limits: RequestLimits,
  caller: Caller,
  {
    request,
    reply,
    takesJson,
  }: { readonly request: FastifyRequest; readonly reply: FastifyReply; readonly takesJson: boolean },
): void {
  const bodyBytes = takesJson ? bodyBytesOf(request) : 0
  const { status, refusal } = limits.rates.count(caller, 1 + Math.floor(bodyBytes / BYTES_PER_TOKEN))
  if (status !== null) reply.headers(rateHeaders(status))
  if (refusal !== null) throw refusal
  onResponseClose(reply.raw, limits.inFlight.acquire(caller.org_id)) // releases at once if the client is gone
  if (bodyBytes > 0) onResponseClose(reply.raw, limits.bodyBytes.acquire(caller.org_id, bodyBytes))
}

/**
 * Counts a stored body against the caller's next requests, as `enforceRequestLimits` counted it when it was sent. A start makes the server
 * read, parse and send a whole specification. Never refuses.
 */
export function countStoredBody(limits: RequestLimits, caller: Caller, bytes: number): void {
  const tokens = Math.floor(bytes / BYTES_PER_TOKEN)
  if (tokens > 0) limits.rates.charge(caller, tokens)
}

/** The most tokens that are taken at once: those of the longest body. The rest is taken from the caller's next requests. */
const TAKEN_AT_ONCE = 512

/**
 * The same before the server handles a stored body. Throws `rate_limited` if the caller has too few tokens. To check the `If-Match` of a
 * specification of 4 MiB took some 50 ms, and 300 such requests held the connections that leases of workers need for five seconds (2026-11).
 */
export function takeStoredBody(limits: RequestLimits, caller: Caller, bytes: number): void {
  const tokens = Math.floor(bytes / BYTES_PER_TOKEN)
  if (tokens === 0) return
  const { refusal } = limits.rates.count(caller, Math.min(tokens, TAKEN_AT_ONCE))
  if (refusal !== null) throw refusal
  if (tokens > TAKEN_AT_ONCE) limits.rates.charge(caller, tokens - TAKEN_AT_ONCE)
}

/** A reply that is about to be sent, with the characters or bytes of JSON that it keeps in memory. */
export type CountedReply = { readonly length: number; readonly isReport: boolean; readonly response: ServerResponse }

/**
 * Counts a large JSON reply until it is sent, as an unread reply of its organization. Throws `rate_limited` if a read
 * has too many of these; a single one is never too many. A change was made already, so its connection is closed
 * instead. The reply also counts as more requests, against the caller's next ones, because its bytes are known only
 * now. Reports in pieces don't, because few are made at once.
 */
export function countReply(limits: RequestLimits, caller: Caller, { length, isReport, response }: CountedReply): void {
  const tokens = Math.floor(length / REPLY_BYTES_PER_TOKEN)
  if (tokens === 0) return
  if (!isReport) limits.rates.charge(caller, tokens)
  try {
    const share = Math.min(length, limits.replyBytesMax)
    onResponseClose(response, limits.replyBytes.acquire(caller.org_id, share))
  } catch (error) {
    if (response.req.method === 'GET') throw error
    response.destroy()
    throw new ClientDisconnected()
  }
}

/** Throws `ClientDisconnected` if the client has left, and `rate_limited` if its organization has too many unread replies. */
export function requireReader(limits: RequestLimits | undefined, caller: Caller, response: ServerResponse): void {
  if (response.req.socket.destroyed) throw new ClientDisconnected()
  limits?.replyBytes.acquire(caller.org_id)()
}

/**
 * The headers of draft-ietf-httpapi-ratelimit-headers-06, which client libraries read. `reset` is a number of seconds
 * from now.
 */
export function rateHeaders({ limit, remaining, resetSecs }: RateStatus): Readonly<Record<string, string>> {
  return {
    'ratelimit-limit': String(limit),
    'ratelimit-remaining': String(remaining),
    'ratelimit-reset': String(resetSecs),
  }
}

function bodyBytesOf(request: FastifyRequest): number {
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers
  const longest = request.routeOptions.bodyLimit ?? 0
  if (encoding !== undefined) return longest
  return length === undefined ? 0 : Math.min(Number(length), longest) // Node's parser accepts only digits
}
