import { interruptibleSleep, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'

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
  readonly wake: { subscribe(topic: string, callback: () => void): () => void }
  /** Waits until this process is the one that runs the loops; the answer's `lost` says when it no longer is. */
  readonly lead: (name: string, signal: AbortSignal) => Promise<{ readonly lost: AbortSignal } & AsyncDisposable>
}

/**
 * Runs a loop until `signal`: one pass at a time, on every replica but in one at a time. A pass that fails is logged
 * and tried again after the period.
 */
export async function runLoop(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      await using leadership = await deps.lead(`loop:${loop.name}`, signal)
      await runWhileLeading(deps, loop, AbortSignal.any([signal, leadership.lost]))
    } catch (error) {
      if (signal.aborted) return
      deps.log.warn({ error, loop: loop.name }, 'a loop lost its lead or failed; it goes on')
      await interruptibleSleep(deps.clock, loop.periodMs, signal)
    }
  }
}

async function runWhileLeading(deps: LoopDeps, loop: Loop, signal: AbortSignal): Promise<void> {
  let isWoken = false
  let sleeper = new AbortController()
  const wake = (): void => {
    isWoken = true
    sleeper.abort()
  }
  const unsubscribes = loop.topics.map((topic) => deps.wake.subscribe(topic, wake))
  try {
    while (!signal.aborted) {
      isWoken = false
      const dueMs = await loop.run(signal)
      sleeper = new AbortController()
      if (isWoken) continue
      const ms = Math.min(dueMs ?? loop.periodMs, loop.periodMs)
      await interruptibleSleep(deps.clock, ms, AbortSignal.any([sleeper.signal, signal]))
    }
  } finally {
    for (const unsubscribe of unsubscribes) unsubscribe()
  }
}
