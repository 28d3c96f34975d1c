import { createSecureContext, type SecureContext } from 'node:tls'
import type { LeafSigner } from './certificate-authority.ts'

export type LeafCertificates = {
  /** A context with a valid certificate for a host: a cached one, or a new one. Rejects if no new one may be made. */
  contextFor(host: string): Promise<SecureContext>
}

type Options = {
  readonly sign: LeafSigner
  readonly capacity: number
  readonly validityHours: number
  readonly now: () => number
  /** Certificates that caches with one authority and validity share. Absent: none. */
  readonly shared?: SharedLeaves
  /** Is called before each signature. Throws if there must be none. */
  readonly countNew?: () => void
}

type Entry = { readonly context: Promise<SecureContext>; readonly renewAtMs: number; readonly endsAtMs: number }

/** The certificates of an authority by host. They are here as long as a cache has them. */
export type SharedLeaves = {
  readonly sign: LeafSigner
  find(host: string): Entry | undefined
  add(host: string, entry: Entry): void
}

export function makeSharedLeaves(sign: LeafSigner): SharedLeaves {
  const entries = new Map<string, WeakRef<Entry>>()
  const dropped = new FinalizationRegistry((host: string) => {
    if (entries.get(host)?.deref() === undefined) entries.delete(host)
  })
  return {
    sign,
    find: (host) => entries.get(host)?.deref(),
    add(host, entry) {
      entries.set(host, new WeakRef(entry))
      dropped.register(entry, host)
    },
  }
}

/** Caches leaf certificates, at most `capacity` of them. The least recently used one is dropped first. */
export function cacheLeafCertificates(options: Options): LeafCertificates {
  const { sign, capacity, validityHours, now, shared, countNew } = options
  const entries = new Map<string, Entry>()
  return {
    async contextFor(host) {
      const nowMs = now()
      const cached = entries.get(host) ?? shared?.find(host)
      const entry = cached !== undefined && nowMs < cached.renewAtMs ? cached : renew(host, cached, nowMs)
      entries.delete(host) // so that it comes last
      if (capacity > 0) entries.set(host, entry)
      for (const oldest of entries.keys()) {
        if (entries.size <= capacity) break
        entries.delete(oldest)
      }
      try {
        return await entry.context
      } catch (error) {
        if (entries.get(host) === entry) entries.delete(host)
        throw error
      }
    },
  }

  /** Makes an entry. If no new one may be made, one that is still valid is used on. */
  function renew(host: string, cached: Entry | undefined, nowMs: number): Entry {
    try {
      return makeEntry(host, nowMs)
    } catch (error) {
      if (cached === undefined || nowMs >= cached.endsAtMs) throw error
      return cached
    }
  }

  function makeEntry(host: string, nowMs: number): Entry {
    countNew?.()
    const context = sign(host, { validityHours, nowMs }).then(({ certificate, key }) =>
      createSecureContext({ cert: certificate, key }),
    )
    // A connection that begins with the cached certificate still needs some of its validity.
    const validityMs = validityHours * 3_600_000
    const entry = { context, renewAtMs: nowMs + validityMs * 0.9, endsAtMs: nowMs + validityMs }
    void context.then(
      () => shared?.add(host, entry),
      () => undefined, // whoever waits for it is told
    )
    return entry
  }
}
