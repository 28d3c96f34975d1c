/** Which server processes a worker may speak to, and which one it syncs with. */
export type ReplicaUrls = {
  /** All that are known, the one that the worker was given first. */
  readonly all: readonly string[]
  /** The one that it syncs with. */
  readonly current: string
  /** How many others are to be tried before those that failed since the last answer are tried again. */
  readonly untried: number
  /** Takes in what the control plane tells of itself, and that `url` answered. */
  learn(url: string, told: readonly string[]): void
  /** Goes on to the next one if `url` is the current one; a failure that others have seen before changes nothing. */
  leave(url: string): void
}

/** The most that are kept. */
const URLS_LIMIT = 32

/**
 * Begins with the URL that the worker was given. Where that is https, no URL without it is taken: the worker's credential
 * never goes out in the clear by what somebody told.
 */
export function makeReplicaUrls(given: string): ReplicaUrls {
  const first = new URL(given)
  let all: readonly string[] = [first.origin]
  let current = first.origin
  let failures = 0

  const accepted = (told: string): readonly string[] => {
    if (!URL.canParse(told)) return []
    const { protocol, origin } = new URL(told)
    return protocol === 'https:' || (protocol === 'http:' && first.protocol === 'http:') ? [origin] : []
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
    learn(url, told) {
      failures = 0
      current = url
      all = [...new Set([first.origin, ...told.flatMap(accepted)])].slice(0, URLS_LIMIT)
    },
    leave(url) {
      if (url !== current) return
      failures += 1
      current = all[(all.indexOf(url) + 1) % all.length] ?? first.origin
    },
  }
}
