import { createSecureContext, type SecureContext } from 'node:tls'
import type { LeafSigner } from './certificate-authority.ts'

export type LeafCertificates = {
  /** A context with a valid certificate for a host: a cached one, or a new one. */
  contextFor(host: string): Promise<SecureContext>
}

type Options = {
  readonly sign: LeafSigner
  readonly capacity: number
  readonly validityHours: number
  readonly now: () => number
}

type Entry = { readonly context: Promise<SecureContext>; readonly renewAtMs: number }

/** Caches leaf certificates, at most `capacity` of them. The least recently used one is dropped first. */
export function cacheLeafCertificates({ sign, capacity, validityHours, now }: Options): LeafCertificates {
  const entries = new Map<string, Entry>()
  return {
    async contextFor(host) {
      const nowMs = now()
      const cached = entries.get(host)
      entries.delete(host)
      const entry = cached !== undefined && nowMs < cached.renewAtMs ? cached : makeEntry(host, nowMs)
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

  function makeEntry(host: string, nowMs: number): Entry {
    const context = sign(host, { validityHours, nowMs }).then(({ certificate, key }) =>
      createSecureContext({ cert: certificate, key }),
    )
    // A connection that begins with the cached certificate still needs some of its validity.
    return { context, renewAtMs: nowMs + validityHours * 3_600_000 * 0.9 }
  }
}
