import type { Clock } from '../../lib/clock.ts'

/**
 * The most addresses of one name, names of one address, and ties of one sandbox. All names of an address are sent to the egress
 * process with each connection to it, and each is compared with each rule. A client that connects after a look-up needs the
 * newest ones alone, also to a content network that has thousands of names at one address.
 */
const LIMITS = { perName: 1_024, perAddress: 64, perSandbox: 16_384 } as const
/** A tie lasts at least this long, so that a client can connect after an answer that must not be cached. */
const SHORTEST_MS = 1_000

export type NamedAddress = { readonly address: string; readonly ttlSecs: number }

/** The names that DNS answers tied to addresses, of one sandbox. */
export type NameTies = {
  /**
   * Ties a name to addresses for their time to live. An address with too many names loses the one that was tied least recently.
   * False, and nothing is tied, if there would be too many ties.
   */
  add(name: string, addresses: readonly NamedAddress[]): boolean
  /** The names that are tied to an address now, at most 64. */
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
        if (names.delete(name)) count -= 1 // so that it comes last
        const [oldest] = names.keys()
        if (oldest !== undefined && names.size === LIMITS.perAddress && names.delete(oldest)) count -= 1
        names.set(name, Math.max(before ?? 0, now + Math.max(SHORTEST_MS, ttlSecs * 1_000)))
        count += 1
      }
      return true
    },
    namesOf(address) {
      const now = clock.monotonicMs()
      return [...(addresses.get(address) ?? [])].flatMap(([name, endMs]) => (endMs > now ? [name] : []))
    },
  }
}
