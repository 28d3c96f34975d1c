import type { Clock } from '../../lib/clock.ts'

/** The most addresses of one name, and of all names of one sandbox. */
const LIMITS = { perName: 1_024, perSandbox: 16_384 } as const
/** A tie lasts at least this long, so that a client can connect after an answer that must not be cached. */
const SHORTEST_MS = 1_000

export type NamedAddress = { readonly address: string; readonly ttlSecs: number }

/** The names that DNS answers tied to addresses, of one sandbox. */
export type NameTies = {
  /** Ties a name to addresses for their time to live. False, and nothing is tied, if there would be too many. */
  add(name: string, addresses: readonly NamedAddress[]): boolean
  /** The names that are tied to an address now. */
  namesOf(address: string): readonly string[]
}

export function makeNameTies(clock: Clock): NameTies {
  const addresses = new Map<string, Map<string, number>>()
  let count = 0

  function removeExpired(now: number): void {
    for (const [address, names] of addresses) {
      for (const [name, endMs] of names) {
        if (endMs > now) continue
        names.delete(name)
        count -= 1
      }
      if (names.size === 0) addresses.delete(address)
    }
  }

  return {
    add(name, found) {
      const now = clock.monotonicMs()
      const added = found.filter(({ address }) => addresses.get(address)?.has(name) !== true).length
      if (found.length > LIMITS.perName) return false
      if (count + added > LIMITS.perSandbox) {
        removeExpired(now)
        if (count + added > LIMITS.perSandbox) return false
      }
      for (const { address, ttlSecs } of found) {
        const names = addresses.get(address) ?? new Map<string, number>()
        addresses.set(address, names)
        const before = names.get(name)
        if (before === undefined) count += 1
        names.set(name, Math.max(before ?? 0, now + Math.max(SHORTEST_MS, ttlSecs * 1_000)))
      }
      return true
    },
    namesOf(address) {
      const now = clock.monotonicMs()
      return [...(addresses.get(address) ?? [])].flatMap(([name, endMs]) => (endMs > now ? [name] : []))
    },
  }
}
