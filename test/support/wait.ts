import { systemClock } from '../../src/lib/clock.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'

const STEP_MS = 5

type Answer<T> = T | undefined | false

/** Resolves with the first result that is neither undefined nor false. Rejects after `limitMs` times TIMEOUT_FACTOR. */
export async function waitUntil<T>(ask: () => Answer<T> | Promise<Answer<T>>, limitMs = 10_000): Promise<T> {
  const from = systemClock.monotonicMs()
  for (;;) {
    const answer = await ask()
    if (answer !== undefined && answer !== false) return answer
    if (systemClock.monotonicMs() - from > limitMs * TIMEOUT_FACTOR)
      throw new Error(`nothing within ${String(limitMs * TIMEOUT_FACTOR)} ms: ${ask.toString()}`)
    await systemClock.sleep(STEP_MS)
  }
}

/** How long a count must stay the same on a busy machine. */
const STILL_MS = 200

/** Resolves when a count that has begun to grow no longer grows. Rejects after `limitMs`. */
export async function waitUntilUnchanged(count: () => number, limitMs = 30_000): Promise<void> {
  let before = 0
  await waitUntil(async () => {
    const isStill = before > 0 && count() === before
    before = count()
    await systemClock.sleep(STILL_MS)
    return isStill
  }, limitMs)
}
