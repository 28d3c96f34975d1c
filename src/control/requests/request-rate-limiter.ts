import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import type { Clock } from '../../lib/clock.ts'
import { makeTokenBuckets, type Rate, type BucketState, type TokenBuckets } from '../../lib/token-buckets.ts'

/** How many requests a second; a rate of 0 is no limit. */
export type RateLimits = {
  readonly key: Rate
  readonly org: Rate
  /** Of each address: requests whose key nobody has. */
  readonly failedAuthentications: Rate
}

/** What a caller is told of its rate: of the limit that leaves it least. */
export type RateStatus = { readonly limit: number; readonly remaining: number; readonly resetSecs: number }

/** What became of a counted request; `note` is null where no rate is limited. */
export type CountedRequest = { readonly status: RateStatus | null; readonly refusal: Problem | null }

/** Counts requests in this process. Only keys that exist are counted, and of strangers the address, so that memory has a bound. */
export type RequestRateLimiter = {
  /** Counts a request of a caller as `tokens`, or refuses it with `rate_limited`, and then it takes nothing. */
  count(caller: Pick<Caller, 'api_key_id' | 'org_id'>, tokens: number): CountedRequest
  /** Throws `rate_limited` for an address that had too many keys refused: those that are not known are no longer looked up. */
  checkFailedAuthentications(address: string): void
  /** Counts a key that nobody has. */
  countFailedAuthentication(address: string): void
}

/** What bounds the guesses of who has no key, credential or token. */
export type AuthenticationRateLimiter = Pick<
  RequestRateLimiter,
  'checkFailedAuthentications' | 'countFailedAuthentication'
>

/** The most keys, organizations and addresses that are counted at once; each takes some 150 bytes. */
const BUCKETS_MAX = 100_000

type NamedRateLimit = Rate & { readonly name: string; readonly variable: string; readonly buckets: TokenBuckets }

/** Makes counters that start at nothing. */
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
    checkFailedAuthentications(address) {
      const standing = failedAuthentications?.buckets.peek(address, 1, clock.monotonicMs())
      if (failedAuthentications !== null && standing !== undefined && standing.enoughAfterSecs > 0)
        throw tooMany(failedAuthentications, standing)
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
  const standing = limit.buckets.peek(of, tokens, nowMs)
  return standing.enoughAfterSecs > 0 ? { status: statusOf(limit, standing), refusal: tooMany(limit, standing) } : null
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
