import type { Caller } from '../../domain/orgs/caller.ts'
import { Problem } from '../../domain/problem.ts'
import type { Clock } from '../../lib/clock.ts'
import { makeTokenBuckets, type Rate, type BucketState, type TokenBuckets } from '../../lib/token-buckets.ts'

/** How many requests a second; a rate of 0 is no limit. */
export type RateLimits = {
  readonly key: Rate
  readonly org: Rate
  /** Of each address: requests whose key nobody has. */
  readonly strangers: Rate
}

/** What a caller is told of its rate: of the limit that leaves it least. */
export type RateNote = { readonly limit: number; readonly remaining: number; readonly resetSecs: number }

/** What became of a counted request; `note` is null where no rate is limited. */
export type Counted = { readonly note: RateNote | null; readonly refusal: Problem | null }

/** Counts requests in this process. Only keys that exist are counted, and of strangers the address, so that memory has a bound. */
export type RequestRates = {
  /** Counts a request of a caller as `tokens`, or refuses it with `rate_limited`, and then it takes nothing. */
  count(caller: Pick<Caller, 'api_key_id' | 'org_id'>, tokens: number): Counted
  /** Throws `rate_limited` for an address that had too many keys refused: those that are not known are no longer looked up. */
  refuseStranger(address: string): void
  /** Counts a key that nobody has. */
  noteStranger(address: string): void
}

/** What bounds the guesses of who has no key, credential or token. */
export type StrangerRates = Pick<RequestRates, 'refuseStranger' | 'noteStranger'>

/** The most keys, organizations and addresses that are counted at once; each takes some 150 bytes. */
const COUNTED_LIMIT = 100_000

type Limited = Rate & { readonly name: string; readonly variable: string; readonly buckets: TokenBuckets }

/** Makes counters that start at nothing. */
export function makeRequestRates(limits: RateLimits, clock: Pick<Clock, 'monotonicMs'>): RequestRates {
  const key = limited(limits.key, 'key_requests_per_sec', 'SANDYARD_KEY_REQUESTS_PER_SEC')
  const org = limited(limits.org, 'org_requests_per_sec', 'SANDYARD_ORG_REQUESTS_PER_SEC')
  const strangers = limited(limits.strangers, 'refused_keys_per_sec', 'SANDYARD_REFUSED_KEYS_PER_SEC')
  return {
    count(caller, tokens) {
      const nowMs = clock.monotonicMs()
      const refused = refuse(key, caller.api_key_id, { tokens, nowMs }) ?? refuse(org, caller.org_id, { tokens, nowMs })
      if (refused !== null) return refused
      const ofKey = take(key, caller.api_key_id, { tokens, nowMs })
      const ofOrg = take(org, caller.org_id, { tokens, nowMs })
      const isKeys = ofOrg === null || (ofKey !== null && ofKey.remaining <= ofOrg.remaining)
      return { note: isKeys ? ofKey : ofOrg, refusal: null }
    },
    refuseStranger(address) {
      const standing = strangers?.buckets.peek(address, 1, clock.monotonicMs())
      if (strangers !== null && standing !== undefined && standing.enoughAfterSecs > 0)
        throw tooMany(strangers, standing)
    },
    noteStranger(address) {
      strangers?.buckets.take(address, 1, clock.monotonicMs())
    },
  }
}

function limited(rate: Rate, name: string, variable: string): Limited | null {
  return rate.perSec === 0 ? null : { ...rate, name, variable, buckets: makeTokenBuckets(rate, COUNTED_LIMIT) }
}

type Take = { readonly tokens: number; readonly nowMs: number }

function refuse(limit: Limited | null, of: string, { tokens, nowMs }: Take): Counted | null {
  if (limit === null) return null
  const standing = limit.buckets.peek(of, tokens, nowMs)
  return standing.enoughAfterSecs > 0 ? { note: noteOf(limit, standing), refusal: tooMany(limit, standing) } : null
}

function take(limit: Limited | null, of: string, { tokens, nowMs }: Take): RateNote | null {
  if (limit === null) return null
  limit.buckets.take(of, tokens, nowMs)
  return noteOf(limit, limit.buckets.peek(of, 1, nowMs))
}

function noteOf({ burst }: Limited, { remaining, fullAfterSecs }: BucketState): RateNote {
  return { limit: burst, remaining, resetSecs: fullAfterSecs }
}

function tooMany({ name, variable, perSec, burst }: Limited, { remaining, enoughAfterSecs }: BucketState): Problem {
  const how_to_change = `send fewer; whoever runs this installation can change it: ${variable}`
  return new Problem('rate_limited', {
    message: `too many requests: ${name} is ${String(perSec)} with ${String(burst)} at once; ${how_to_change}`,
    details: { limit: name, max: perSec, current: burst - remaining, how_to_change },
    retryAfterSeconds: enoughAfterSecs,
  })
}
