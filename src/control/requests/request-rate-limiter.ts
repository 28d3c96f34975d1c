import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import type { Clock } from '../../lib/clock.ts'
import { makeTokenBuckets, type Rate, type BucketState, type TokenBuckets } from '../../lib/turns/token-buckets.ts'

/** Rates in requests per second. 0 means no limit. */
export type RateLimits = {
  readonly key: Rate
  readonly org: Rate
  /** Failed authentications per IP address. */
  readonly failedAuthentications: Rate
}

/** Of the rate limits of a caller, the one with the fewest requests left. The headers of a reply show these values. */
export type RateStatus = { readonly limit: number; readonly remaining: number; readonly resetSecs: number }

/** The result of counting a request. `status` is null without limits. `refusal` is null unless a limit is exceeded. */
export type CountedRequest = { readonly status: RateStatus | null; readonly refusal: Problem | null }

/**
 * Counts the requests of this process by known key, and failed authentications by address. It keeps no counter for an
 * unknown key, which bounds its memory.
 */
export type RequestRateLimiter = {
  /**
   * Takes `tokens` from the caller's limits. If a limit is exceeded, it refuses the request with `rate_limited` and
   * takes nothing.
   */
  count(caller: Pick<Caller, 'api_key_id' | 'org_id'>, tokens: number): CountedRequest
  /**
   * Takes `tokens` more for a request that was counted, because it took longer than most. Never refuses. What the limits don't have
   * now, up to another burst, is taken from what comes.
   */
  charge(caller: Pick<Caller, 'api_key_id' | 'org_id'>, tokens: number): void
  /**
   * Throws `rate_limited` for an address with too many failed authentications. Call it before the look-up of an unknown
   * key.
   */
  checkFailedAuthentications(address: string): void
  /** Counts a failed authentication of an address. */
  countFailedAuthentication(address: string): void
}

/** Limits how fast an address can guess keys, worker credentials and join tokens. */
export type AuthenticationRateLimiter = Pick<
  RequestRateLimiter,
  'checkFailedAuthentications' | 'countFailedAuthentication'
>

/** The maximum number of counters for keys, for organizations and for addresses. Each counter takes about 150 bytes. */
const BUCKETS_MAX = 100_000

type NamedRateLimit = Rate & { readonly name: string; readonly variable: string; readonly buckets: TokenBuckets }

/** Makes a rate limiter that has counted no requests yet. */
export function makeRequestRateLimiter(limits: RateLimits, clock: Pick<Clock, 'monotonicMs'>): RequestRateLimiter {
  const key = makeNamedRateLimit(limits.key, 'key_requests_per_sec', 'SANDYARD_KEY_REQUESTS_PER_SEC')
  const org = makeNamedRateLimit(limits.org, 'org_requests_per_sec', 'SANDYARD_ORG_REQUESTS_PER_SEC')
  const failedAuthentications = makeNamedRateLimit(
    limits.failedAuthentications,
    'refused_keys_per_sec',
    'SANDYARD_REFUSED_KEYS_PER_SEC',
  )
  return {
    count(caller, tokens) {
      const nowMs = clock.monotonicMs()
      const refused = refuse(key, caller.api_key_id, { tokens, nowMs }) ?? refuse(org, caller.org_id, { tokens, nowMs })
      if (refused !== null) return refused
      const ofKey = take(key, caller.api_key_id, { tokens, nowMs })
      const ofOrg = take(org, caller.org_id, { tokens, nowMs })
      const isKeys = ofOrg === null || (ofKey !== null && ofKey.remaining <= ofOrg.remaining)
      return { status: isKeys ? ofKey : ofOrg, refusal: null }
    },
    charge(caller, tokens) {
      const nowMs = clock.monotonicMs()
      key?.buckets.owe(caller.api_key_id, tokens, nowMs)
      org?.buckets.owe(caller.org_id, tokens, nowMs)
    },
    checkFailedAuthentications(address) {
      const state = failedAuthentications?.buckets.peek(address, 1, clock.monotonicMs())
      if (failedAuthentications !== null && state !== undefined && state.enoughAfterSecs > 0)
        throw tooMany(failedAuthentications, state)
    },
    countFailedAuthentication(address) {
      failedAuthentications?.buckets.take(address, 1, clock.monotonicMs())
    },
  }
}

function makeNamedRateLimit(rate: Rate, name: string, variable: string): NamedRateLimit | null {
  return rate.perSec === 0 ? null : { ...rate, name, variable, buckets: makeTokenBuckets(rate, BUCKETS_MAX) }
}

type Take = { readonly tokens: number; readonly nowMs: number }

function refuse(limit: NamedRateLimit | null, of: string, { tokens, nowMs }: Take): CountedRequest | null {
  if (limit === null) return null
  const state = limit.buckets.peek(of, tokens, nowMs)
  return state.enoughAfterSecs > 0 ? { status: statusOf(limit, state), refusal: tooMany(limit, state) } : null
}

function take(limit: NamedRateLimit | null, of: string, { tokens, nowMs }: Take): RateStatus | null {
  if (limit === null) return null
  limit.buckets.take(of, tokens, nowMs)
  return statusOf(limit, limit.buckets.peek(of, 1, nowMs))
}

function statusOf({ burst }: NamedRateLimit, { remaining, fullAfterSecs }: BucketState): RateStatus {
  return { limit: burst, remaining, resetSecs: fullAfterSecs }
}

function tooMany(
  { name, variable, perSec, burst }: NamedRateLimit,
  { remaining, enoughAfterSecs }: BucketState,
): Problem {
  const how_to_change = `send fewer; the operator can change it with ${variable}`
  return new Problem('rate_limited', {
    message: `too many requests: ${name} is ${String(perSec)} with ${String(burst)} at once; ${how_to_change}`,
    details: { limit: name, max: perSec, current: burst - remaining, how_to_change },
    retryAfterSeconds: enoughAfterSecs,
  })
}
