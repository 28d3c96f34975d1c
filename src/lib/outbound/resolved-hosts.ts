import { isIP } from 'node:net'
import type { Clock } from '../clock.ts'
import type { Log } from '../log.ts'
import { resolveBySystem } from './resolve-by-system.ts'

/** The addresses of hosts whose addresses may change while the process runs. */
export type ResolvedHosts = {
  /** The addresses as of a minute ago or less, unless a look-up failed. Then the earlier addresses stay. */
  addresses(): readonly string[]
  /** Looks the hosts up. Never rejects. */
  refresh(): Promise<void>
}

const MAX_AGE_MS = 60_000

/** Looks up the addresses of hosts. Reading the addresses starts a new look-up when the last one is too old. */
export function makeResolvedHosts(
  { clock, log }: { readonly clock: Clock; readonly log: Log },
  hosts: () => readonly string[],
): ResolvedHosts {
  const found = new Map<string, readonly string[]>()
  let lookedUpAtMs = Number.NEGATIVE_INFINITY

  async function refresh(): Promise<void> {
    lookedUpAtMs = clock.monotonicMs()
    const names = [...new Set(hosts())]
    for (const known of found.keys()) if (!names.includes(known)) found.delete(known)
    await Promise.all(
      names.map(async (name) => {
        try {
          found.set(name, isIP(name) === 0 ? await resolveBySystem(name) : [name])
        } catch (error) {
          log.warn({ error, host: name }, 'the addresses of a host could not be looked up; the earlier ones stay')
        }
      }),
    )
  }

  return {
    addresses() {
      if (clock.monotonicMs() - lookedUpAtMs > MAX_AGE_MS) void refresh()
      return [...found.values()].flat()
    },
    refresh,
  }
}

/** The host of a URL, without the brackets of an IPv6 address. Null if the text is not a URL with a host. */
export function hostOfUrl(url: string): string | null {
  const host = URL.canParse(url) ? new URL(url).hostname.replace(/^\[|\]$/g, '') : ''
  return host === '' ? null : host
}
