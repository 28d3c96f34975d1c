import type { Caller } from '../../domain/orgs/caller.ts'

/** A key that is not revoked: its caller, and when it expires by the wall clock. */
export type CachedKey = { readonly caller: Caller; readonly expires_at: Date | null }

/** Looks a key up in the database. `wasKnown`: the key was found before, and its entry is not evicted yet. */
export type KeyLookup = (about: { readonly wasKnown: boolean }) => Promise<CachedKey | null>

/** Caches keys by the base64 hash of their secret. */
export type KeyCache = {
  /** The cached key, or the result of `lookUp`. Callers that ask for the same key meanwhile share that result. */
  find(hash: string, nowMs: number, lookUp: KeyLookup): Promise<CachedKey | null>
  /** Has the next `find` look the key up. */
  forget(hash: string): void
}

/** How long a key is cached: other processes refuse a revoked key after this time. */
const KEY_CACHE_MS = 1_000
/** The most cached keys. */
const KEY_CACHE_MAX = 10_000

/** Makes a cache for found keys. Unknown keys and failures are never cached. */
export function makeKeyCache(): KeyCache {
  const entries = new Map<string, { readonly known: Promise<CachedKey | null>; readonly untilMs: number }>()
  return {
    find(hash, nowMs, lookUp) {
      const entry = entries.get(hash)
      if (entry !== undefined && nowMs < entry.untilMs) return entry.known
      if (entries.size >= KEY_CACHE_MAX) entries.clear()
      const added = { known: lookUp({ wasKnown: entry !== undefined }), untilMs: nowMs + KEY_CACHE_MS }
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

/** An unknown key may be created at any moment, and a failed look-up says nothing about its key. */
async function forgetUnlessFound(known: Promise<CachedKey | null>, forget: () => void): Promise<CachedKey | null> {
  let found: CachedKey | null = null
  try {
    found = await known
    return found
  } finally {
    if (found === null) forget()
  }
}
