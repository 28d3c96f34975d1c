/** How often something may happen: `perSec` on average, `burst` at once. */
export type Rate = { readonly perSec: number; readonly burst: number }

/** What a bucket holds at a moment, in whole tokens and whole seconds rounded up. */
export type BucketState = {
  readonly remaining: number
  /** Until the bucket is full. */
  readonly fullAfterSecs: number
  /** Until it holds what was asked for; 0 when it does. */
  readonly enoughAfterSecs: number
}

/** A bucket of tokens for each key. Those that nobody uses are full again in a while, and are not kept. */
export type TokenBuckets = {
  /** What the bucket of a key holds at `nowMs`, by a clock that only grows, and how long until it holds `tokens`. */
  peek(key: string, tokens: number, nowMs: number): BucketState
  /** Takes tokens, as many as there are when there are fewer. */
  take(key: string, tokens: number, nowMs: number): void
  /** How many keys are kept. */
  readonly size: number
}

type Bucket = { readonly tokens: number; readonly atMs: number }

/** Of the longest unused, so many are looked at with each that is added: those that are full are dropped. */
const SWEPT_PER_TAKE = 2

/**
 * Makes buckets that are full at first. At most `maxKeys` are kept: beyond, the one longest unused is forgotten, which
 * gives its key a full bucket; so memory has a bound and nobody is refused for what others do.
 */
export function makeTokenBuckets({ perSec, burst }: Rate, maxKeys: number): TokenBuckets {
  const buckets = new Map<string, Bucket>() // the longest unused first

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

  return {
    peek(key, tokens, nowMs) {
      const held = tokensAt(buckets.get(key), nowMs)
      const missing = Math.min(tokens, burst) - held
      return {
        remaining: Math.floor(held),
        fullAfterSecs: Math.ceil((burst - held) / perSec),
        enoughAfterSecs: missing <= 0 ? 0 : Math.ceil(missing / perSec),
      }
    },
    take(key, tokens, nowMs) {
      const held = tokensAt(buckets.get(key), nowMs)
      buckets.delete(key)
      buckets.set(key, { tokens: Math.max(0, held - tokens), atMs: nowMs })
      sweep(nowMs)
    },
    get size() {
      return buckets.size
    },
  }
}
