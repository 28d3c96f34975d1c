import { systemClock } from '../../src/lib/clock.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'

const STEP_MS = 5

type Answer<T> = T | undefined | false

/**
 * Resolves with the first result that is neither undefined nor false. Rejects after `limitMs` times TIMEOUT_FACTOR with a
 * message that ends with `describe()`: the text that says what is still missing. By default, it is the source of `ask`.
 */
export async function waitUntil<T>(
  ask: () => Answer<T> | Promise<Answer<T>>,
  limitMs = 10_000,
  describe: () => string = () => ask.toString(),
): Promise<T> {
  const from = systemClock.monotonicMs()
  for (;;) {
    const answer = await ask()
    if (answer !== undefined && answer !== false) return answer
    if (systemClock.monotonicMs() - from > limitMs * TIMEOUT_FACTOR)
      throw new Error(`nothing within ${String(limitMs * TIMEOUT_FACTOR)} ms: ${describe()}`)
    await systemClock.sleep(STEP_MS)
  }
}

/** How long a count must stay the same, in milliseconds. */
const STILL_MS = 200
/**
 * The number of turns of the event loop in that time. A process that got no processor time for a while must handle its
 * pending I/O before it may conclude that nothing grows.
 */
const STILL_TURNS = 10

/** Resolves once a count is above zero and no longer changes. Rejects after `limitMs`. */
export async function waitUntilUnchanged(count: () => number, limitMs = 30_000): Promise<void> {
  let before = 0
  await waitUntil(async () => {
    const isStill = before > 0 && count() === before
    before = count()
    for (let turn = 0; turn < STILL_TURNS; turn++) await systemClock.sleep(STILL_MS / STILL_TURNS)
    return isStill
  }, limitMs)
}
