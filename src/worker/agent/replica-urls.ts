/** Which server processes a worker may speak to, and which one it syncs with. */
export type ReplicaUrls = {
  /** All that are known, the one that the worker was given first. */
  readonly all: readonly string[]
  /** The one that it syncs with. */
  readonly current: string
  /** How many others are to be tried before those that failed since the last answer are tried again. */
  readonly untried: number
  /** Whether the worker's credential may go to a URL that the control plane tells. */
  accepts(told: string): boolean
  /** Takes in what the control plane tells of itself, and that `url` answered. */
  markAnswered(url: string, told: readonly string[]): void
  /** Goes on to the next one if `url` is the current one; a failure that others have seen before changes nothing. */
  markFailed(url: string): void
}

/** The most that are kept. */
const URLS_LIMIT = 32

const LOOPBACK = /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/

/**
 * Begins with the URL that the worker was given. Where that is https, no URL without it is taken: the worker's credential
 * never goes out in the clear by what somebody told. Nor is one of the loopback, unless the given one is: on the machine of
 * the worker somebody else may listen there.
 */
export function makeReplicaUrls(given: string): ReplicaUrls {
  const first = new URL(given)
  let all: readonly string[] = [first.origin]
  let current = first.origin
  let failures = 0

  const accepts = (told: string): boolean => {
    if (!URL.canParse(told)) return false
    const { protocol, hostname } = new URL(told)
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
    markAnswered(url, told) {
      failures = 0
      current = url
      const others = told.filter(accepts).map((one) => new URL(one).origin)
      all = [...new Set([first.origin, ...others])].slice(0, URLS_LIMIT)
    },
    markFailed(url) {
      if (url !== current) return
      failures += 1
      current = all[(all.indexOf(url) + 1) % all.length] ?? first.origin
    },
  }
}
