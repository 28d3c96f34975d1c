import { isLoopbackName } from '../../domain/network/loopback-name.ts'

/** The URLs of the server processes that a worker may connect to, and the URL that it syncs with. */
export type ReplicaUrls = {
  /** All known URLs. The first is the URL that the worker was started with. */
  readonly all: readonly string[]
  /** The URL that the worker syncs with. */
  readonly current: string
  /** How many URLs the worker can try before it returns to the first one that failed since the last answer. */
  readonly untried: number
  /** Whether the worker's credential may be sent to a URL that the control plane named. */
  accepts(named: string): boolean
  /** Records that `url` answered and named these URLs. */
  markAnswered(url: string, named: readonly string[]): void
  /** Records that `url` failed. If `url` is current, the next URL becomes current. */
  markFailed(url: string): void
}

/** The maximum number of URLs to keep. */
const URLS_LIMIT = 32

/**
 * Creates the list with the URL that the worker was started with. If that URL is https, only https URLs are accepted,
 * so that no answer makes the worker send its credential unencrypted. A loopback URL is accepted only if `given` is a
 * loopback URL, because another program may listen on the worker's own loopback.
 */
export function makeReplicaUrls(given: string): ReplicaUrls {
  const first = new URL(given)
  let all: readonly string[] = [first.origin]
  let current = first.origin
  let failures = 0

  const accepts = (named: string): boolean => {
    if (!URL.canParse(named)) return false
    const { protocol, hostname } = new URL(named)
    if (isLoopbackName(hostname) && !isLoopbackName(first.hostname)) return false
    return protocol === 'https:' || (protocol === 'http:' && first.protocol === 'http:')
  }

  return {
    get all() {
      return all
    },
    get current() {
      return current
    },
    get untried() {
      return Math.max(0, all.length - 1 - failures)
    },
    accepts,
    markAnswered(url, named) {
      failures = 0
      current = url
      const others = named.filter(accepts).map((one) => new URL(one).origin)
      all = [...new Set([first.origin, ...others])].slice(0, URLS_LIMIT)
    },
    markFailed(url) {
      if (url !== current) return
      failures += 1
      current = all[(all.indexOf(url) + 1) % all.length] ?? first.origin
    },
  }
}
