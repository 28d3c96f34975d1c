import { WORKER_LEASE_MS } from '../../../domain/workers/lease.ts'

/**
 * The longest time that a worker may report of a run that started in the future of this server's clock, in
 * milliseconds. The clock was set back, so nothing here knows better.
 */
const LONGEST_UNSEEN_MS = 366 * 24 * 3_600_000

/**
 * The end of a run, for what is billed: as long after its start as its worker measured. Clocks of different machines
 * differ, and this one may have been set. A worker can't prolong a run by more than the time of its lease. Without a
 * measure, and for a run that never started, the end is `at`.
 */
export function runEnd(startedAt: Date | null, at: Date, ranMs: number | undefined): Date {
  if (startedAt === null || ranMs === undefined || ranMs < 0) return at
  const passedMs = at.getTime() - startedAt.getTime()
  const longestMs = passedMs > 0 ? passedMs + WORKER_LEASE_MS : LONGEST_UNSEEN_MS
  return new Date(startedAt.getTime() + Math.min(ranMs, longestMs))
}
