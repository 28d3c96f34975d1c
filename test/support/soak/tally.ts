/** Counts what the clients of a soak did and saw. */
export type SoakTally = {
  /** Increments a counter. */
  count(what: Counted): void
  /** Records a breach of the contract, which fails the soak. */
  breach(text: string): void
  readonly counts: Readonly<Record<Counted, number>>
  readonly breaches: readonly string[]
}

export const COUNTER_NAMES = [
  'requests',
  'refused while something was away',
  'connections that broke',
  'whole lives of sandboxes',
  'creates repeated with their key',
  'commands run in sandboxes',
  'files written and read back',
  'keys made, used and revoked',
  'pages read',
  'hostile connections',
] as const
type Counted = (typeof COUNTER_NAMES)[number]

/** The maximum number of breaches that are kept. The first ones show the cause. */
const BREACHES_KEPT = 20

/** Makes an empty tally. */
export function makeTally(): SoakTally {
  const counts: Record<Counted, number> = Object.assign(
    Object.create(null),
    Object.fromEntries(COUNTER_NAMES.map((what) => [what, 0])),
  )
  const breaches: string[] = []
  return {
    count(what) {
      counts[what] += 1
    },
    breach(text) {
      if (breaches.length < BREACHES_KEPT) breaches.push(text)
    },
    counts,
    breaches,
  }
}
