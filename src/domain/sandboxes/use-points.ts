/**
 * What a sandbox used in an interval of time. Null: the driver can't measure it. Points of neighbouring intervals are merged into
 * one of a longer interval.
 */
export type UsePoint = {
  /** The start of the interval, in milliseconds since 1970. */
  readonly atMs: number
  /** How long the sandbox was measured in it, in milliseconds: shorter than the interval if it started or ended in it. */
  readonly coveredMs: number
  /** The processor time, in milliseconds of one vCPU. */
  readonly cpuMs: number
  /** Its memory without the cached files that the kernel can drop at once: on average, and the most. */
  readonly memoryBytes: number
  readonly memoryMaxBytes: number
  /** The most processes. */
  readonly processes: number | null
  /** The space that its files take on its disk, at the end of the interval. */
  readonly diskBytes: number | null
  /** What its network interfaces received and sent in the interval. */
  readonly receivedBytes: number | null
  readonly sentBytes: number | null
}

/** Merges two points, of which `later` is the later one. The result is at `atMs`. */
export function mergeUse(atMs: number, earlier: UsePoint, later: UsePoint): UsePoint {
  const coveredMs = earlier.coveredMs + later.coveredMs
  const share = coveredMs === 0 ? 1 : later.coveredMs / coveredMs
  return {
    atMs,
    coveredMs,
    cpuMs: earlier.cpuMs + later.cpuMs,
    memoryBytes: earlier.memoryBytes + (later.memoryBytes - earlier.memoryBytes) * share,
    memoryMaxBytes: Math.max(earlier.memoryMaxBytes, later.memoryMaxBytes),
    processes: either(earlier.processes, later.processes, Math.max),
    diskBytes: later.diskBytes ?? earlier.diskBytes,
    receivedBytes: either(earlier.receivedBytes, later.receivedBytes, add),
    sentBytes: either(earlier.sentBytes, later.sentBytes, add),
  }
}

function either(a: number | null, b: number | null, merge: (a: number, b: number) => number): number | null {
  if (a === null) return b
  return b === null ? a : merge(a, b)
}

function add(a: number, b: number): number {
  return a + b
}

/** Merges points into intervals of `stepMs`, which begin at multiples of it. `points` are in the order of time. */
export function mergeIntoSteps(points: Iterable<UsePoint>, stepMs: number): readonly UsePoint[] {
  const merged: UsePoint[] = []
  for (const point of points) {
    const atMs = startOfStep(point.atMs, stepMs)
    const last = merged.at(-1)
    if (last?.atMs === atMs) merged[merged.length - 1] = mergeUse(atMs, last, point)
    else merged.push({ ...point, atMs })
  }
  return merged
}

/** The start of the interval of `stepMs` that contains an instant. */
export function startOfStep(atMs: number, stepMs: number): number {
  return Math.floor(atMs / stepMs) * stepMs
}

/** The intervals for which points are kept, and for how long: seconds for an hour, minutes for a day, hours for a month. */
export const USE_LEVELS = [
  { stepMs: 1_000, keptMs: 3_600_000 },
  { stepMs: 60_000, keptMs: 86_400_000 },
  { stepMs: 3_600_000, keptMs: 2_678_400_000 },
] as const satisfies readonly UseLevel[]

export type UseLevel = { readonly stepMs: number; readonly keptMs: number }

/** The most points that one request gets. */
export const USE_POINTS_MAX = 3_600

/** The steps that are chosen for a request that names none: the first that gives at most `STEPS_WANTED` points. */
const STEPS_SECS = [1, 5, 10, 30, 60, 300, 900, 1_800, 3_600, 14_400, 43_200, 86_400]
const STEPS_WANTED = 400

/** The part of a sandbox's use that is asked for: from `sinceMs` on and before `untilMs`, by milliseconds since 1970. */
export type UseRange = { readonly sinceMs: number; readonly untilMs: number }

/** The step for a request that names none, in seconds. */
export function stepFor({ sinceMs, untilMs }: UseRange): number {
  const wantedSecs = (untilMs - sinceMs) / 1_000 / STEPS_WANTED
  return STEPS_SECS.find((secs) => secs >= wantedSecs) ?? Math.ceil(wantedSecs / 86_400) * 86_400
}

/** How late a request for the last hour may arrive at the worker and still get seconds. */
const LATE_MS = 10_000

/** The finest level that still has points from `sinceMs` on, or the coarsest one. */
export function levelFor(sinceMs: number, nowMs: number): UseLevel {
  return USE_LEVELS.find(({ keptMs }) => sinceMs >= nowMs - keptMs - LATE_MS) ?? USE_LEVELS[2]
}
