import type { Caller } from '../../domain/orgs/caller.ts'

/** A key that is not revoked, with its caller and its expiry by the wall clock. */
export type CachedKey = { readonly caller: Caller; readonly expires_at: Date | null }

/**
 * Looks a key up in the database. `wasKnown` says that the cache still has the entry of an earlier look-up, which has
 * expired.
 */
type KeyLookup<Found> = (about: { readonly wasKnown: boolean }) => Promise<Found | null>

/** Caches keys by the base64 hash of their secret. */
export type KeyCache<Found = CachedKey> = {
  /**
   * Resolves with the cached key, or else with the result of `lookUp`. Concurrent calls for the same key share that
   * result.
   */
  find(hash: string, nowMs: number, lookUp: KeyLookup<Found>): Promise<Found | null>
  /** Removes the cached key. The next `find` looks it up again. */
  forget(hash: string): void
}

/** How long a key is cached, in milliseconds. Other processes refuse a revoked key after this time. */
const KEY_CACHE_MS = 1_000
/** The maximum number of keys that are cached. */
const KEY_CACHE_MAX = 10_000

/**
 * Makes a cache for found keys. Unknown keys and failures are never cached. With `keptMs` of 0 it answers nothing from memory: it only
 * tells which keys were valid.
 */
export function makeKeyCache<Found = CachedKey>(keptMs = KEY_CACHE_MS): KeyCache<Found> {
  const entries = new Map<string, { readonly known: Promise<Found | null>; readonly untilMs: number }>()
  return {
    find(hash, nowMs, lookUp) {
      const entry = entries.get(hash)
      if (entry !== undefined && nowMs < entry.untilMs) return entry.known
      if (entries.size >= KEY_CACHE_MAX) entries.clear()
      const added = { known: lookUp({ wasKnown: entry !== undefined }), untilMs: nowMs + keptMs }
      entries.set(hash, added)
      return forgetUnlessFound(added.known, () => {
        if (entries.get(hash) === added) entries.delete(hash)
      })
    },
    forget(hash) {
      entries.delete(hash)
    },
  }
}

/**
 * Waits for a look-up and returns its result. Calls `forget` if no key was found, because the key may be created at any
 * moment. Calls it too if the look-up fails, because a failure proves nothing about the key.
 */
async function forgetUnlessFound<Found>(known: Promise<Found | null>, forget: () => void): Promise<Found | null> {
  let found: Found | null = null
  try {
    found = await known
    return found
  } finally {
    if (found === null) forget()
  }
}
