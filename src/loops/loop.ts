import { interruptibleSleep, type Clock, NOTIFIED } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Leadership } from './leader-election.ts'

/** A reconciliation loop. Its only input is the database, so a missed notification costs only time. */
export type Loop = {
  readonly name: string
  /** The longest time between two passes, in milliseconds. */
  readonly periodMs: number
  /** The notification topics that start a pass early. */
  readonly topics: readonly string[]
  /**
   * Runs one pass. May be repeated. Resolves with the time until the next pass, in milliseconds, or with null to wait
   * for `periodMs`.
   */
  readonly run: (signal: AbortSignal) => Promise<number | null>
}

/** The time until `due` in milliseconds: 0 if it has come, null if there is none. */
export function untilDueMs(due: Date | null, now: Date): number | null {
  return due === null ? null : Math.max(0, due.getTime() - now.getTime())
}

/** Learns about the passes of the loops, for metrics. */
export type LoopObserver = {
  /** This process begins to lead these loops. */
  readonly onLead: (loops: readonly Loop[]) => void
  readonly onLeadEnd: () => void
  readonly onPass: (pass: { readonly loop: string; readonly durationMs: number; readonly hasFailed: boolean }) => void
}

export type LoopDeps = {
  readonly clock: Clock
  readonly log: Log
  readonly notifications: { subscribe(topic: string, callback: () => void): () => void }
  /** Waits until this process leads and may run the loops. */
  readonly acquireLeadership: (signal: AbortSignal) => Promise<Leadership>
  readonly observer?: LoopObserver
}

/** The pause before a process asks for the leadership again, after it lost or failed to acquire it, in milliseconds. */
const LEADERSHIP_RETRY_MS = 1_000

/**
 * Runs loops until `signal` aborts, each with one pass at a time. It runs them only while this process leads. Whenever
 * this process becomes the leader, it makes new loops. No loop can then act on data that it read before another process
 * led. A failed pass is logged and repeated after the loop's period.
 */
export async function runLoops(
  deps: LoopDeps,
  loopsOf: (leadership: Leadership) => readonly Loop[],
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    try {
      await using leadership = await deps.acquireLeadership(signal)
      const leading = AbortSignal.any([signal, leadership.lost])
      const loops = loopsOf(leadership)
      deps.observer?.onLead(loops)
      try {
        await Promise.all(loops.map((loop) => runLoop(deps, loop, leading)))
      } finally {
        deps.observer?.onLeadEnd()
      }
    } catch (error) {
      if (!signal.aborted) deps.log.warn({ error }, 'could not lead the loops; will retry')
    }
    await interruptibleSleep(deps.clock, LEADERSHIP_RETRY_MS, signal)
  }
}

async function runLoop(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<void> {
  let isNotified = false
  let sleeper = new AbortController()
  const onNotified = (): void => {
    isNotified = true
    sleeper.abort(NOTIFIED)
  }
  const unsubscribes = loop.topics.map((topic) => deps.notifications.subscribe(topic, onNotified))
  try {
    while (!signal.aborted) {
      isNotified = false
      sleeper = new AbortController()
      const dueMs = await runPass(deps, loop, signal)
      if (dueMs === 'failed') await interruptibleSleep(deps.clock, loop.periodMs, signal)
      else if (!isNotified)
        await interruptibleSleep(deps.clock, Math.min(dueMs ?? loop.periodMs, loop.periodMs), sleeper.signal, signal)
    }
  } finally {
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}

async function runPass(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<number | null | 'failed'> {
  const startedMs = deps.clock.monotonicMs()
  const report = (hasFailed: boolean): void =>
    deps.observer?.onPass({ loop: loop.name, durationMs: deps.clock.monotonicMs() - startedMs, hasFailed })
  try {
    const dueMs = await loop.run(signal)
    report(false)
    return dueMs
  } catch (error) {
    if (!signal.aborted) {
      report(true)
      deps.log.warn({ error, loop: loop.name }, 'a pass of a loop failed; will retry')
    }
    return 'failed'
  }
}
