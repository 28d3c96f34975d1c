import type { KeyCache, CachedKey } from '../deps.ts'

/** How long a looked-up key is trusted without asking again: one that another process revoked is refused after this. */
const KEY_CACHE_MS = 1_000
/** The most keys that are remembered. */
const KEY_CACHE_MAX = 10_000

/** Remembers keys that were just looked up; what was not found, and failures, are never remembered. */
export function makeKeyCache(): KeyCache {
  const entries = new Map<string, { readonly known: Promise<CachedKey | null>; readonly untilMs: number }>()
  return {
    find(hash, nowMs, lookUp) {
      const entry = entries.get(hash)
      if (entry !== undefined && nowMs < entry.untilMs) return entry.known
      if (entries.size >= KEY_CACHE_MAX) entries.clear()
      const made = { known: lookUp({ wasKnown: entry !== undefined }), untilMs: nowMs + KEY_CACHE_MS }
      entries.set(hash, made)
      return forgetUnlessFound(made.known, () => {
        if (entries.get(hash) === made) entries.delete(hash)
      })
    },
    forget(hash) {
      entries.delete(hash)
    },
  }
}

/** A key that was not found may be made in the next moment, and a failure says nothing of a key. */
async function forgetUnlessFound(known: Promise<CachedKey | null>, forget: () => void): Promise<CachedKey | null> {
  let found: CachedKey | null = null
  try {
    found = await known
    return found
  } finally {
    if (found === null) forget()
  }
}
