/** The server processes that a worker may connect to, and the one that it syncs with. */
export type ReplicaUrls = {
  /** All known URLs, beginning with the one that the worker was given. */
  readonly all: readonly string[]
  /** The one that the worker syncs with. */
  readonly current: string
  /** How many have not failed since the last answer, the current one aside. */
  readonly untried: number
  /** Whether the worker's credential may be sent to a URL that the control plane named. */
  accepts(named: string): boolean
  /** Notes that `url` answered, and the URLs that it named. */
  markAnswered(url: string, named: readonly string[]): void
  /** Notes that `url` failed: the next one becomes current, unless another one has already. */
  markFailed(url: string): void
}

/** The most URLs that are kept. */
const URLS_LIMIT = 32

const LOOPBACK = /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/

/**
 * Begins with the URL that the worker was given. If that is https, no other kind is accepted: the credential is never sent in
 * the clear because of an answer. Nor is a loopback URL, unless the given one is: another program may listen there on the
 * worker's machine.
 */
export function makeReplicaUrls(given: string): ReplicaUrls {
  const first = new URL(given)
  let all: readonly string[] = [first.origin]
  let current = first.origin
  let failures = 0

  const accepts = (named: string): boolean => {
    if (!URL.canParse(named)) return false
    const { protocol, hostname } = new URL(named)
    if (LOOPBACK.test(hostname) && !LOOPBACK.test(first.hostname)) return false
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
