/** A rate limit: `perSec` on average, and up to `burst` at once. */
export type Rate = { readonly perSec: number; readonly burst: number }

/** The state of a bucket at a given time. Tokens are whole; seconds are rounded up. */
export type BucketState = {
  readonly remaining: number
  /** Seconds until the bucket is full. */
  readonly fullAfterSecs: number
  /** Seconds until the bucket contains the requested tokens. 0 if it contains them now. */
  readonly enoughAfterSecs: number
}

/** One token bucket per key. Unused buckets fill up and are then forgotten. */
export type TokenBuckets = {
  /** The state of a key's bucket at `nowMs` of a monotonic clock. `enoughAfterSecs` applies to `tokens`. */
  peek(key: string, tokens: number, nowMs: number): BucketState
  /** Takes `tokens`, or all tokens if the bucket contains fewer. */
  take(key: string, tokens: number, nowMs: number): void
  /** Takes `tokens`, also those that the bucket lacks: it may lack up to `burst` afterwards, and gets them first. */
  owe(key: string, tokens: number, nowMs: number): void
  /** The number of keys that are remembered. */
  readonly size: number
}

type Bucket = { readonly tokens: number; readonly atMs: number }

/** Takes `tokens`, until `least` are left. */
type Change = { readonly tokens: number; readonly least: number; readonly nowMs: number }

/** How many of the longest unused buckets each `take` checks. It forgets those that are full again. */
const SWEPT_PER_TAKE = 2

/**
 * Creates buckets that start full. At most `maxKeys` are remembered. Beyond that, the longest unused bucket is
 * forgotten, which gives its key a full bucket. This bounds the memory, and no key is refused because of other keys.
 */
export function makeTokenBuckets({ perSec, burst }: Rate, maxKeys: number): TokenBuckets {
  const buckets = new Map<string, Bucket>() // the longest unused bucket is first

  function tokensAt(bucket: Bucket | undefined, nowMs: number): number {
    if (bucket === undefined) return burst
    return Math.min(burst, bucket.tokens + ((nowMs - bucket.atMs) / 1000) * perSec)
  }

  function sweep(nowMs: number): void {
    let looked = 0
    for (const [key, bucket] of buckets) {
      if (buckets.size > maxKeys || tokensAt(bucket, nowMs) >= burst) buckets.delete(key)
      if (++looked === SWEPT_PER_TAKE) return
    }
  }

  function change(key: string, { tokens, least, nowMs }: Change): void {
    const held = tokensAt(buckets.get(key), nowMs)
    buckets.delete(key)
    buckets.set(key, { tokens: Math.max(Math.min(least, held), held - tokens), atMs: nowMs })
    sweep(nowMs)
  }

  return {
    peek(key, tokens, nowMs) {
      const held = tokensAt(buckets.get(key), nowMs)
      const missing = Math.min(tokens, burst) - held
      return {
        remaining: Math.max(0, Math.floor(held)),
        fullAfterSecs: Math.ceil((burst - held) / perSec),
        enoughAfterSecs: missing <= 0 ? 0 : Math.ceil(missing / perSec),
      }
    },
    take: (key, tokens, nowMs) => change(key, { tokens, least: 0, nowMs }),
    owe: (key, tokens, nowMs) => change(key, { tokens, least: -burst, nowMs }),
    get size() {
      return buckets.size
    },
  }
}
