import { systemClock } from '../../src/lib/clock.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'

const STEP_MS = 5

type Answer<T> = T | undefined | false

/** Resolves with the first answer that is not undefined or false; rejects when there is none within `limitMs` (times PACE). */
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

/** Long enough for what moves at all to have moved on a busy machine. */
const STILL_MS = 200

/** Resolves once a count that has begun to grow grows no more; rejects when it has not stopped within `limitMs`. */
export async function waitUntilUnchanged(count: () => number, limitMs = 30_000): Promise<void> {
  let before = 0
  await waitUntil(async () => {
    const isStill = before > 0 && count() === before
    before = count()
    await systemClock.sleep(STILL_MS)
    return isStill
  }, limitMs)
}
