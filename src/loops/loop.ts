import { interruptibleSleep, type Clock, NOTIFIED } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { Leadership } from './leader-election.ts'

/** A piece of work that makes the world agree with the database. It takes no input but the database, so that a missed
 * wake-up costs time and nothing else. */
export type Loop = {
  readonly name: string
  /** The longest time between two passes, in milliseconds. */
  readonly periodMs: number
  /** The wake topics that start a pass early. */
  readonly topics: readonly string[]
  /** One pass. May be repeated. Answers how long until the next is due, or null for the period. */
  readonly run: (signal: AbortSignal) => Promise<number | null>
}

export type LoopDeps = {
  readonly clock: Clock
  readonly log: Log
  readonly notifications: { subscribe(topic: string, callback: () => void): () => void }
  /** Waits until this process is the one that runs the loops. */
  readonly lead: (signal: AbortSignal) => Promise<Leadership>
}

/** How long after a lead that could not be had or was lost the next is asked for. */
const LEADERSHIP_RETRY_MS = 1_000

/**
 * Runs loops until `signal`, each one pass at a time, on every replica but in one at a time: one lead is for all of
 * them. They are made anew for each lead, so that none remembers what it saw before another process led. A pass that
 * fails is logged and tried again after the loop's period.
 */
export async function runLoops(
  deps: LoopDeps,
  loopsOf: (leadership: Leadership) => readonly Loop[],
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    try {
      await using leadership = await deps.lead(signal)
      const leading = AbortSignal.any([signal, leadership.lost])
      await Promise.all(loopsOf(leadership).map((loop) => runLoop(deps, loop, leading)))
    } catch (error) {
      if (!signal.aborted) deps.log.warn({ error }, 'the lead of the loops could not be had; it is asked for again')
    }
    await interruptibleSleep(deps.clock, LEADERSHIP_RETRY_MS, signal)
  }
}

async function runLoop(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<void> {
  let isWoken = false
  let sleeper = new AbortController()
  const wake = (): void => {
    isWoken = true
    sleeper.abort(NOTIFIED)
  }
  const unsubscribes = loop.topics.map((topic) => deps.notifications.subscribe(topic, wake))
  try {
    while (!signal.aborted) {
      isWoken = false
      sleeper = new AbortController()
      const either = AbortSignal.any([sleeper.signal, signal])
      const dueMs = await runPass(deps, loop, signal)
      if (dueMs === 'failed') await interruptibleSleep(deps.clock, loop.periodMs, signal)
      else if (!isWoken) await interruptibleSleep(deps.clock, Math.min(dueMs ?? loop.periodMs, loop.periodMs), either)
    }
  } finally {
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}

async function runPass(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<number | null | 'failed'> {
  try {
    return await loop.run(signal)
  } catch (error) {
    if (!signal.aborted) deps.log.warn({ error, loop: loop.name }, 'a pass of a loop failed; it is tried again')
    return 'failed'
  }
}
